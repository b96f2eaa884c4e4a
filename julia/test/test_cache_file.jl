using RosettaAttention: FILE_FORMAT, Fields, narrow, read_file, write_tensors

function filled(cache, rng; counts = Int64[5, 3])
    T, (Hkv, D, Dv) = eltype(cache), RosettaAttention.head_sizes(cache)
    random(dims...) = narrow(randn(rng, dims...), T)
    new = cache isa LatentCache ?
        (random(cache.latent_dim, 5, 2), random(cache.rope_dim, 5, 2)) :
        (random(D, 5, Hkv, 2), random(Dv, 5, Hkv, 2))
    return append!(cache, new...; lengths = counts)
end

pool_of(T, pages = 8) = PagePool{T}(pages, 2, 1, 4, 3)
saved_kinds(T) = [
    () -> KVCache{T}(2, 1, 4, 3; capacity = 7),
    () -> KVCache{T}(2, 1, 4, 3; rope = Rope()),
    () -> RotatingCache{T}(2, 1, 4, 3; window = 2, keep = 1),
    () -> PagedCache(pool_of(T), 2),
    () -> QuantisedCache{T}(2, 1, 4, 3; format = "int4", group = 2, zero_point = true),
    () -> QuantisedCache{T}(2, 1, 4, 3; format = "bf16", group = 4),
    () -> LatentCache{T}(2, 3, 1),
    () -> CrossCache{T}(2, 1, 4, 3),
]

@testset "saved and loaded: $(typeof(new()))" for T in (Float32, Float16), new in saved_kinds(T)
    rng, path = MersenneTwister(70), tempname()
    cache = filled(new(), rng)
    cache isa Union{KVCache,QuantisedCache} && shift!(evict!(cache, [1]), 4, 3)
    save(cache, path)
    again = filled(new(), rng)
    load!(again, path)
    @test isequal(read(again), read(cache)) && again.rows.next == cache.rows.next
    @test stats(again).positions == stats(cache).positions
    q = narrow(randn(rng, RosettaAttention.head_sizes(cache)[2], 2, 2, 2), T)
    @test same(attend(again, q), attend(cache, q))
    if !(cache isa CrossCache)
        foreach(one -> filled(one, MersenneTwister(71); counts = Int64[1, 2]), (cache, again))
        @test isequal(read(again), read(cache)) && same(attend(again, q), attend(cache, q))
    end
    _, metadata = read_file(path)
    @test metadata["format"] == FILE_FORMAT && metadata["version"] == "1" && metadata["batch"] == "2"
    @test metadata["dtype"] == (T == Float32 ? "f32" : "f16")
    @test all(text -> text isa String, values(metadata))
    empty = new()
    save(empty, path)
    @test lengths(load!(again, path)) == [0, 0]
    @test code_of(() -> save(cache, joinpath(tempname(), "x"))) == :invalid_request
    @test code_of(() -> save(cache, 5)) == :invalid_request
end

@testset "files that do not fit" begin
    rng, path = MersenneTwister(72), tempname()
    cache = filled(KVCache(2, 1, 4, 3), rng)
    save(cache, path)
    into(cache) = code_of(() -> load!(cache, path))
    @test into(KVCache(2, 1, 4, 3; capacity = 4)) == :capacity_exceeded
    @test into(KVCache(3, 1, 4, 3)) == into(KVCache(2, 1, 4)) == :invalid_config
    @test into(KVCache(2, 1, 4, 3; rope = Rope())) == :invalid_config
    @test into(PagedCache(pool_of(Float32), 2)) == into(CrossCache(2, 1, 4, 3)) == :invalid_config
    @test into(KVCache{Float64}(2, 1, 4, 3)) == into(KVCache{BFloat16}(2, 1, 4, 3)) == :dtype_mismatch

    paged = filled(PagedCache(pool_of(Float32, 5), 2), rng)
    @test stats(paged).pages == [5, 0, 0]
    save(paged, path)
    @test into(paged) == :none && into(PagedCache(pool_of(Float32, 4), 2)) == :capacity_exceeded
    other = fork(paged)
    @test into(paged) == :capacity_exceeded && stats(paged).pages == [5, 5, 0]

    quantised(; options...) = QuantisedCache(2, 1, 4, 3; options...)
    save(filled(quantised(format = "int8"), rng), path)
    @test into(quantised(format = "int8")) == :none
    # A group of a whole head is written as a number where head_dim and value_dim differ.
    groups = ((format = "int8", group = group) for group in (3, 4, 9))
    for options in (groups..., (format = "int4",), (format = "int8", zero_point = true))
        @test into(quantised(; options...)) == :invalid_config
    end
    tensors, metadata = read_file(path)
    for group in ("x", "04", " 4", "4.0", "3", "4")
        write_tensors(path, Fields([tensors...]), Fields([metadata..., "group" => group]))
        @test into(quantised(format = "int8")) == :invalid_config
    end
    square(; options...) = QuantisedCache(2, 1, 4, 4; format = "int8", options...)
    for cache in (square(), square(group = 4))  # the default, and in as many words
        save(filled(cache, rng), path)
        tensors, metadata = read_file(path)
        @test !haskey(metadata, "group") && into(square()) == into(square(group = 4)) == :none
        write_tensors(path, Fields([tensors...]), Fields([metadata..., "group" => "4"]))
        @test into(square()) == into(square(group = 4)) == :invalid_config
    end
    save(filled(square(group = 9), rng), path)
    @test into(square(group = 9)) == :none && into(square()) == into(square(group = 5)) == :invalid_config
end

@testset "files that are damaged" begin
    rng, path = MersenneTwister(73), tempname()
    cache = filled(KVCache(2, 1, 4, 3), rng)
    save(cache, path)
    tensors, metadata = read_file(path)
    target = filled(KVCache(2, 1, 4, 3), rng)
    before = deepcopy(read(target))
    function spoilt(tensor_changes = (), text_changes = ())
        changed = merge(tensors, Dict{String,Any}(tensor_changes))
        texts = merge(metadata, Dict{String,Any}(text_changes))
        kept(table) = Fields([name => value for (name, value) in table if value !== nothing])
        write_tensors(path, kept(changed), kept(texts))
        code = code_of(() -> load!(target, path))
        @test isequal(read(target), before) || code == :none
        return code
    end
    positions = tensors["positions"]
    moved(b, j, value) = (x = copy(positions); x[j, b] = value; x)
    bad = [
        ["k" => nothing], ["k" => tensors["k"][:, 1:4, :, :]], ["k" => Float64.(tensors["k"])],
        ["junk" => [1.0]], ["lengths" => Int64[6, 3]], ["lengths" => Int64[-1, 5]],
        ["lengths" => Int64[4, 3]], ["lengths" => [5.0, 3.0]], ["next" => Int64[4, 3]],
        ["next" => Int64[5]], ["next" => Int64[5, typemin(Int64)]],
        ["positions" => moved(1, 2, 0)], ["positions" => moved(1, 1, -2)],
        ["positions" => moved(2, 4, 7)], ["positions" => nothing],
    ]
    for changes in bad
        @test spoilt(changes) == :invalid_request
    end
    @test spoilt((), ["format" => "x"]) == spoilt((), ["version" => "2"]) == :invalid_request
    for text in ("version", "kind", "batch", "dtype")
        @test spoilt((), [text => nothing]) == :invalid_request
    end
    @test spoilt((), ["kind" => "new"]) == spoilt((), ["head_dim" => "5"]) == :invalid_config
    @test spoilt((), ["dtype" => "f8"]) == :invalid_request
    @test spoilt((), ["group" => "1"]) == :invalid_config
    write_tensors(path, Fields(["k" => [1.0]]))
    @test code_of(() -> load!(target, path)) == code_of(() -> load!(target, tempname())) == :invalid_request
    write(path, read(path)[1:end-3])
    @test code_of(() -> load!(target, path)) == code_of(() -> load!(target, tempdir())) == :invalid_request
    @test spoilt() == :none

    rotating = RotatingCache(1, 1, 1; window = 2, keep = 1)
    append!(rotating, ones(Float32, 1, 5, 1, 1), ones(Float32, 1, 5, 1, 1))
    append!(rotating, ones(Float32, 1, 1, 1, 1), ones(Float32, 1, 1, 1, 1))
    save(rotating, path)
    tensors, metadata = read_file(path)
    @test tensors["positions"][:] == [0, 4, 5]
    target = deepcopy(rotating)
    before = read(target)
    # the one that is kept for good is not there
    @test spoilt(["positions" => reshape(Int64[1, 4, 5], 3, 1)]) == :invalid_request
    @test spoilt() == :none
end
