using RosettaAttention: FileError, JSONError, Fields, Unreadable, parse_json, read_tensors, write_tensors

# A file as its bytes: a header, and the data after it.
function written(header::String, data::Vector{UInt8}; header_bytes = sizeof(header))
    path = tempname()
    open(io -> write(io, UInt64(header_bytes), header, data), path, "w")
    return path
end

bytes_of(x) = collect(reinterpret(UInt8, vec(collect(x))))
entry(dtype, shape, start, stop) = "{\"dtype\":\"$dtype\",\"shape\":$shape,\"data_offsets\":[$start,$stop]}"

@testset "row-major bytes, reversed dimensions (AxisOrder)" begin
    path = written("{\"x\":" * entry("F64", "[2,3,4,5]", 0, 960) * "}", bytes_of(Float64.(0:119)))
    x = read_tensors(path)["x"]
    @test size(x) == (5, 4, 3, 2)
    @test x[5, 1, 3, 2] == 1 * 60 + 2 * 20 + 0 * 5 + 4  # the element [1, 2, 0, 4] elsewhere
    @test x == row_major(Float64, (2, 3, 4, 5), 0:119)
    copied = tempname()
    write_tensors(copied, Fields(["x" => x]))
    @test read(copied)[end-959:end] == read(path)[end-959:end]
    @test occursin("[2,3,4,5]", String(read(copied)))
end

@testset "an awkward file" begin
    # No name order, a scalar, an empty tensor, mixed and unaligned types, a header of odd length.
    header = "{\"z\":" * entry("F32", "[3]", 1, 13) * ",\"flag\":" * entry("BOOL", "[]", 0, 1)
    header *= ",\"half\":" * entry("BF16", "[1]", 13, 15) * ",\"none\":" * entry("F32", "[0,4]", 15, 15)
    header *= ",\"a\":" * entry("I64", "[1,2]", 15, 31) * ",\"__metadata__\":{\"k\":\"v\"}} "
    header *= " "^mod(1 - sizeof(header), 8)
    @test sizeof(header) % 8 == 1
    data = [bytes_of([true]); bytes_of(Float32[1, 2, 3]); UInt8[0, 0]; bytes_of(Int64[-5, 7])]
    tensors = read_tensors(written(header, data))
    @test sort(collect(keys(tensors))) == ["a", "flag", "half", "none", "z"]
    @test same(tensors["z"], Float32[1, 2, 3]) && same(tensors["a"], reshape(Int64[-5, 7], 2, 1))
    @test same(tensors["flag"], fill(true)) && same(tensors["none"], zeros(Float32, 4, 0))
    @test same(tensors["half"], zeros(BFloat16, 1))
    small = written("{\"x\":" * entry("F8_E5M2", "[1]", 0, 1) * "}", [0x00])
    @test read_tensors(small)["x"] == Unreadable("F8_E5M2")
end

@testset "round trips" begin
    tensors = Fields([
        "scalar" => fill(1.5f0),
        "empty" => zeros(2, 0, 3),
        "special" => [NaN, Inf, -Inf, -0.0, 5e-324, floatmax()],
        "third" => fill(0.1f0, 3, 1),
        "counts" => Int64[typemin(Int64), 0, typemax(Int64)],
        "flags" => [true, false, true],
        "half" => Float16[0.5, 65504],
        "brain" => BFloat16[0.5, 1e38, -0.0],
    ])
    path = tempname()
    write_tensors(path, tensors)
    again = read_tensors(path)
    @test length(again) == length(tensors)
    for (name, x) in tensors
        @test same(again[name], x)
    end
    @test !ispath(path * ".partial")
    folder = mktempdir()
    @test_throws Exception write_tensors(folder, tensors)
    @test !ispath(folder * ".partial")
    header_bytes = open(io -> read(io, UInt64), path)
    @test header_bytes % 8 == 0
    write_tensors(path, Fields())
    @test isempty(read_tensors(path))
end

@testset "broken files" begin
    x = entry("F32", "[2]", 0, 8)
    data = bytes_of(Float32[1, 2])
    @test length(read_tensors(written("{\"x\":$x}", data))) == 1
    bad = [
        written("{\"x\":$x}", data; header_bytes = 10^6),
        written("{\"x\":$x}", data; header_bytes = typemax(UInt64)),
        written("{\"x\":$x}\0", data),
        written("[1]", data),
        written("no", data),
        written("{\"x\":$x}", data[1:7]),
        written("{\"x\":$x}", [data; 0x00]),
        written("{\"x\":" * entry("F32", "[2]", 1, 9) * "}", [0x00; data]),
        written("{\"x\":$x,\"y\":" * entry("U8", "[1]", 7, 8) * "}", data),
        written("{\"x\":" * entry("F32", "[3]", 0, 8) * "}", data),
        written("{\"x\":" * entry("F32", "[2]", 8, 0) * "}", data),
        written("{\"x\":" * entry("F32", "[2]", -8, 0) * "}", data),
        written("{\"x\":" * entry("F32", "[-2]", 0, 8) * "}", data),
        written("{\"x\":" * entry("F32", "[9223372036854775807,4]", 0, 8) * "}", data),
        written("{\"x\":" * entry("F32", "2", 0, 8) * "}", data),
        written("{\"x\":7}", data),
        written("{\"x\":" * entry("F31", "[2]", 0, 8) * "}", data),
        written("{\"x\":{\"dtype\":\"F32\"}}", data),
    ]
    for path in bad
        error = try
            read_tensors(path)
        catch error
            error
        end
        @test error isa Union{FileError,JSONError}
    end
    short = tempname()
    write(short, UInt8[1, 2, 3])
    @test_throws FileError read_tensors(short)
    @test_throws SystemError read_tensors(tempname())
end
