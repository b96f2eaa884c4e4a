# Keys in groups of tokens. The helpers are those of test_caches.jl.

using RosettaAttention: Fields, read_file, write_tensors

kivi(; format = "int8", key_groups = 2, options...) =
    KiviCache(1, 2, 4, 3; format = format, key_groups = key_groups, options...)

# A group of keys (D, n, H, 1) as quantise would round them, tokens for channels.
by_channel(x) = permutedims(x, (2, 1, 3, 4))
stored_bits(cache) = (read_codes(cache), lengths(cache), read(cache).positions)

@testset "by hand: a channel has a scale of its own, and the tail is as it came" begin
    x = reshape(Float32[1000, 1, -500, 0.5, 3, 0.1], 2, 3, 1, 1)
    cache = append!(KiviCache(1, 1, 2; format = "int8", key_groups = 2), x, x)
    codes, k = read_codes(cache), read(cache).k
    @test codes.k_codes[:] == Int8[127, 127, -64, 64, 0, 0]  # -63.5 and 63.5 are ties
    @test codes.k_scale[:] == Float32[1000/127, 1/127] && size(codes.k_scale) == (2, 1, 1, 1)
    @test codes.k_tail[:] == Float32[3, 0.1] == k[5:6] && !haskey(codes, :k_zero)
    by_token = append!(QuantisedCache(1, 1, 2; format = "int8"), x, x)
    @test abs(k[4] - 0.5) < 1 / 127 && abs(read(by_token).k[4] - 0.5) > 0.4  # lost beside the large channel

    # two channels a byte, token by token
    x = reshape(Float32[7, -7, 1, 3, 7, -7], 3, 2, 1, 1)
    packed = read_codes(append!(KiviCache(1, 1, 3; format = "int4", key_groups = 2), x, x))
    @test packed.k_codes[:] == UInt8[0x97, 0x01, 0x73, 0x09]
end

@testset "codes of $format, zero point $zero_point, in groups of $n" for format in ("int8", "int4"),
    zero_point in (false, true),
    n in 1:4

    rng = MersenneTwister(90 + n)
    cache = kivi(format = format, zero_point = zero_point, key_groups = n, group = 2, rope = Rope(base = 50))
    k, v = heads_of(rng, Float32, 1, 2, 4, 3, 7)
    append!(cache, k, v)
    held, codes, turned = read(cache), read_codes(cache), rope(k, Rope(base = 50))
    full = 7 ÷ n * n
    @test size(codes.k_scale) == (4, 7 ÷ n, 2, 1) && same(codes.k_tail, turned[:, full+1:7, :, :])
    for g in 1:7÷n
        slots = (g-1)*n+1:g*n
        group = quantise(by_channel(turned[:, slots, :, :]), format; zero_point = zero_point)
        @test same(held.k[:, slots, :, :], by_channel(restore(group)))
        @test codes.k_scale[:, g, :, :] == group.scale[1, :, :, :]
        zero_point && @test codes.k_zero[:, g, :, :] == group.zero[1, :, :, :]
    end
    by_token = quantise(v, format; group = 2, zero_point = zero_point)
    @test codes.v_codes == by_token.codes && codes.v_scale == by_token.scale
end

@testset "a contiguous cache of the restored numbers, in groups of $n" for n in (1, 3, 9), T in FLOATS
    rng, turns = MersenneTwister(91), (rope = Rope(base = 9), rope_at = "attend")
    cache = KiviCache{T}(2, 2, 4, 3; format = "int4", key_groups = n, zero_point = true, turns...)
    for counts in ([5, 2], [0, 4], [3, 1])
        append!(cache, heads_of(rng, T, 2, 2, 4, 3, 5)...; lengths = Int64[counts...])
    end
    held, q, causal = read(cache), randn(rng, T, 4, 3, 4, 2), Mask(causal = true)
    plain = append!(KVCache{T}(2, 2, 4, 3; turns...), held.k, held.v; lengths = held.lengths)
    @test same(attend(cache, q; mask = causal), attend(plain, q; mask = causal))
end

@testset "one by one, in chunks, all at once" begin
    k, v = heads_of(MersenneTwister(92), Float32, 2, 2, 4, 3, 11)
    new() = KiviCache(2, 2, 4, 3; format = "int4", key_groups = 3, rope = Rope())
    whole = append!(new(), k, v)
    for size in (1, 2, 4)
        cache = new()
        for first in 1:size:11
            part = first:min(first + size - 1, 11)
            append!(cache, k[:, part, :, :], v[:, part, :, :])
        end
        @test isequal(stored_bits(cache), stored_bits(whole))
    end
end

@testset "what a change restores is quantised where a group is full" begin
    k, v = heads_of(MersenneTwister(93), Float32, 1, 2, 4, 3, 8)
    filled(; options...) = append!(kivi(; key_groups = 3, options...), k, v)  # two groups, and a tail of 2
    before, codes = read(filled()).k, read_codes(filled())
    part(x, slots) = x[:, slots, :, :]
    again(x) = by_channel(restore(quantise(by_channel(x), "int8")))

    cut = truncate!(filled(), [5])
    @test same(read_codes(cut).k_tail, part(before, 4:5))  # restored numbers wait
    @test same(read_codes(cut).k_scale, codes.k_scale[:, 1:1, :, :])
    whole = truncate!(filled(), [6])
    @test same(read(whole).k, part(before, 1:6)) && size(read_codes(whole).k_tail, 2) == 0
    bits = stored_bits(whole)
    @test isequal(stored_bits(truncate!(whole, [6])), bits)

    gone = evict!(filled(), [4])
    @test same(part(read(gone).k, 4:6), again(part(before, [4, 6, 7])))
    @test same(part(read(gone).k, 1:3), part(before, 1:3)) && same(read_codes(gone).k_tail, part(before, 8:8))
    bits = stored_bits(gone)
    @test isequal(stored_bits(evict!(gone, [77])), bits)

    moved = filled(rope = Rope(base = 9))
    was = read(moved).k
    now = read(shift!(moved, 2, 4))
    @test now.positions[:] == [0, 1, 2, 3, 6, 7, 8, 9] && same(part(now.k, 1:3), part(was, 1:3))
    turned = rope(part(was, 4:6), Rope(base = 9); positions = reshape([0, 2, 2], 3, 1))
    @test same(part(now.k, 4:6), again(turned))
    late = filled(rope = Rope(base = 9), rope_at = "attend")
    @test same(read(shift!(late, 2, 4)).k, before)
end

@testset "groups before the first change keep their bits, which another rounding would not" begin
    x = reshape(Float32[0.5201810598373413, 0.2734357416629791, 1.2287554740905762], 3, 1, 1, 1)
    once = restore(quantise(x, "int4"; zero_point = true))
    @test restore(quantise(once, "int4"; zero_point = true)) != once
    cache = KiviCache(1, 1, 1; format = "int4", key_groups = 3, zero_point = true)
    keys = reshape([x[:]; 1; 2; 3; 4], 1, 7, 1, 1)
    append!(cache, keys, zero(keys))
    changes = (() -> evict!(cache, [4]), () -> evict!(cache, [6]), () -> truncate!(cache, [4]))
    for change in (changes..., () -> evict!(cache, WindowPolicy(budget = 3, sinks = 3)))
        change()
        @test read(cache).k[1:3] == once[:]
    end
end

@testset "rows, forks and beams share no later step" begin
    k, v = heads_of(MersenneTwister(94), Float32, 2, 2, 4, 3, 5)
    cache = KiviCache(2, 2, 4, 3; format = "int8", key_groups = 2)
    append!(cache, k, v; lengths = Int64[5, 2])
    before = stored_bits(cache)
    other = reorder!(fork(cache), [1, 1])
    @test lengths(other) == [2, 2] && size(read_codes(other).k_tail, 2) == 0
    append!(evict!(other, [0, 3]), k, v)
    @test isequal(stored_bits(cache), before)
    @test stats(reset!(cache)).bytes == 0 && size(read_codes(cache).k_codes, 2) == 0
end

@testset "numbers without a code, and configs that cannot be" begin
    one(x) = fill(Float32(x), 1, 1, 1, 1)
    cache = KiviCache(1, 1, 1; format = "int8", key_groups = 3, zero_point = true)
    append!(cache, one(1), one(1))
    function refused(k, v = one(0); options...)
        before = stored_bits(cache)
        code = code_of(() -> append!(cache, k, v; options...))
        @test code == :none || isequal(stored_bits(cache), before)
        return code
    end
    for x in (NaN, Inf, -Inf)  # in the tail already
        @test refused(one(x)) == :invalid_config
        @test refused(cat(one(2), one(x); dims = 2), zeros(Float32, 1, 2, 1, 1); lengths = Int64[1]) == :none
        truncate!(cache, [1])
    end
    append!(cache, one(3e38), one(0))
    @test refused(one(-3e38)) == :invalid_config  # a range only where a group is full
    @test refused(one(5)) == :none
    wide = KiviCache{Float64}(1, 1, 1; format = "int8", key_groups = 2)
    far = fill(1e300, 1, 1, 1, 1)
    @test code_of(() -> append!(wide, far, zero(far))) == :invalid_config && lengths(wide) == [0]
    bad = ((key_groups = 0,), (key_groups = 1.5,), (key_groups = "2",), (format = "f16",), (track = 1,))
    for options in bad
        @test code_of(() -> kivi(; options...)) == :invalid_config
    end
    bounded = kivi(capacity = 3)
    @test code_of(() -> append!(bounded, heads_of(MersenneTwister(1), Float32, 1, 2, 4, 3, 4)...)) ==
        :capacity_exceeded

    # a turn may make a key too long for Float32, also one that waits
    turning = KiviCache(1, 1, 2; format = "int8", key_groups = 4, rope = Rope())
    long = fill(3f38, 2, 1, 1, 1)
    append!(turning, long, zero(long))
    before = stored_bits(turning)
    @test code_of(() -> shift!(turning, 1, 0)) == :invalid_config
    @test isequal(stored_bits(turning), before)

    # what is left of two groups may have a range that neither had
    apart = KiviCache(1, 1, 1; format = "int8", key_groups = 2, zero_point = true)
    x = reshape(Float32[3e38, 3e38, -3e38, -3e38], 1, 4, 1, 1)
    append!(apart, x, zero(x))
    before = stored_bits(apart)
    @test code_of(() -> evict!(apart, [1])) == :invalid_config && isequal(stored_bits(apart), before)
end

@testset "bytes, and a file" begin
    rng = MersenneTwister(95)
    cache = append!(kivi(zero_point = true), heads_of(rng, Float32, 1, 2, 4, 3, 5)...)
    # heads · (codes, scales and zeros of two groups, and the tail), and values by token
    @test stats(cache).bytes == 2 * (4 * 4 + 2 * 4 * 8 + 4 * 4) + 2 * 5 * (3 + 8)
    x = ones(Float32, 128, 64, 1, 1)
    many = append!(KiviCache(1, 1, 128; format = "int4", key_groups = 32), x, x)
    @test stats(many).bytes <= 0.16 * 2 * sizeof(x)

    new(n = 3) = KiviCache(2, 2, 4, 3; format = "int4", key_groups = n, zero_point = true, track = true)
    cache, path = new(), tempname()
    k, v = heads_of(rng, Float32, 2, 2, 4, 3, 8)
    append!(cache, k, v; lengths = Int64[8, 5])
    attend(cache, randn(rng, Float32, 4, 2, 4, 2))
    save(cache, path)
    tensors, metadata = read_file(path)
    @test metadata["kind"] == "quantised" && metadata["key_groups"] == "3" && metadata["track"] == "true"
    sizes = [size(tensors[name]) for name in ("k_codes", "k_scale", "k_zero", "k_tail", "tracked")]
    @test sizes == [(2, 8, 2, 2), (4, 2, 2, 2), (4, 2, 2, 2), (4, 2, 2, 2), (8, 2, 2)]
    again = load!(new(), path)
    @test isequal(stored_bits(again), stored_bits(cache)) && same(tracked(again), tracked(cache))
    foreach(one -> append!(one, k, v; lengths = Int64[1, 2]), (cache, again))
    @test isequal(stored_bits(again), stored_bits(cache)) && same(tracked(again), tracked(cache))
    untracked = KiviCache(2, 2, 4, 3; format = "int4", key_groups = 3, zero_point = true)
    by_token = QuantisedCache(2, 2, 4, 3; format = "int4", zero_point = true, track = true)
    for other in (new(2), untracked, by_token)
        @test code_of(() -> load!(other, path)) == :invalid_config && all(iszero, lengths(other))
    end
    for name in ("k_scale", "k_zero", "k_tail", "tracked")
        short = merge(tensors, Dict{String,Any}(name => tensors[name][:, 1:1, :, :]))
        name == "tracked" && (short[name] = Float32.(tensors[name]))
        write_tensors(path, Fields([pair for pair in short]), Fields([pair for pair in metadata]))
        @test code_of(() -> load!(again, path)) == :invalid_request
        @test isequal(stored_bits(again), stored_bits(cache))
    end
end
