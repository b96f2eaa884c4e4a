using RosettaAttention: fp8_code, fp8_value, narrow

@testset "quantise: degenerate groups" begin
    zeros_and_ends = Float32[0 -1; 0 1; 0 1; 0 -1]
    codes = quantise(zeros_and_ends, "int8")
    @test codes.codes == Int8[0 -127; 0 127; 0 127; 0 -127] && eltype(codes.codes) == Int8
    @test same(restore(codes), zeros_and_ends)
    constant = fill(0.7f0, 4, 1)
    for format in ("int8", "int4")
        codes = quantise(constant, format; zero_point = true)
        @test all(iszero, codes.codes) && iszero(codes.scale[]) && same(restore(codes), constant)
        @test all(iszero, restore(quantise(zeros(Float32, 4, 2), format)))
    end
end

@testset "quantise: scales differ" begin
    x = Float32[1 8; -2 4; 100 0; 50 0.5]
    codes = quantise(x, "int8"; group = 2)
    @test size(codes.scale) == (2, 2) && codes.scale == Float32[2/127 8/127; 100/127 0.5/127]
    steps = repeat(codes.scale; inner = (2, 1))  # off by half of one, and a rounding
    @test all(abs.(restore(codes) .- x) .<= steps ./ 2 .+ eps.(x))
    @test size(quantise(x, "int8"; group = 3).scale) == (2, 2)
    @test size(quantise(x, "int8"; group = 9).scale) == (1, 2)
end

@testset "quantise: int4 is packed" begin
    x = reshape(Float32[-7, 7, 1, -1, 3.5], 5, 1)
    codes = quantise(x, "int4")
    @test codes.codes == UInt8[0x79; 0xf1; 0x04] |> x -> reshape(x, 3, 1)  # 3.5 is a tie, and 4 is even
    @test restore(codes)[:] == Float32[-7, 7, 1, -1, 4]
    codes = quantise(x, "int4"; zero_point = true)
    @test codes.zero[] == -7 && codes.scale[] == 14.0f0 / 15 && codes.codes[1] == 0xf0
    @test abs(restore(codes)[2] - 7) <= 1e-6
end

@testset "quantise: fp8" begin
    values = [fp8_value(code) for code in 0x00:0xff]
    @test count(isnan, values) == 2 && maximum(filter(!isnan, values)) == 448
    @test values[2] == 2.0f0^-9 && values[9] == 2.0f0^-6 && values[0x39] == 1 && same(values[0x81], -0.0f0)
    for code in 0x00:0xff
        code & 0x7f == 0x7f || @test fp8_code(fp8_value(code)) == code
    end
    for code in 0x00:0x7d  # between two neighbours: the nearer one, of a tie the even one
        low, high = values[code+1], values[code+2]
        middle = (low + high) / 2
        even = iseven(code) ? code : code + 0x01
        @test fp8_code(middle) == even && fp8_code(-middle) == even | 0x80
        @test fp8_code(prevfloat(middle)) == code && fp8_code(nextfloat(middle)) == code + 0x01
    end
    @test fp8_code.(Float32[Inf, -Inf, 1e30, 449, NaN, -NaN]) == [0x7e, 0xfe, 0x7e, 0x7e, 0x7f, 0x7f]
end

@testset "quantise: properties" begin
    rng = MersenneTwister(50)
    for _ in 1:40
        x = randn(rng, Float32, rand(rng, 0:9), rand(rng, 0:3), 2) .* 10.0f0^rand(rng, -3:3)
        group = rand(rng, Any[nothing, 1, 2, 4])
        for (format, point) in (("int8", false), ("int8", true), ("int4", false), ("int4", true))
            codes = quantise(x, format; group = group, zero_point = point)
            values = restore(codes)
            @test size(values) == size(x) && eltype(values) == Float32
            for column in CartesianIndices(size(x)[2:3]), d in 1:size(x, 1)
                step = codes.scale[cld(d, codes.group), column]
                @test abs(values[d, column] - x[d, column]) <= 0.5001f0 * step + 1.0f-6 * abs(x[d, column])
            end
        end
        @test same(restore(quantise(x, "f16")), Float32.(Float16.(x)))
        @test same(restore(quantise(x, "bf16")), Float32.(narrow(x, BFloat16)))
        @test same(quantise(Float64.(x), "int8").codes, quantise(x, "int8").codes)
    end
end

@testset "quantise: codes of errors" begin
    x = ones(Float32, 2, 2)
    bad(x, format; options...) = code_of(() -> quantise(x, format; options...))
    @test bad(x, "int9") == bad(x, 8) == bad(x, "int8"; group = 0) == :invalid_config
    @test bad(x, "fp8_e4m3"; zero_point = true) == :invalid_config
    @test bad(Float32[NaN], "int8") == bad(Float32[Inf], "int4") == bad([1e300], "int8") == :invalid_config
    @test bad(Float32[3e38, -3e38], "int8"; zero_point = true) == :invalid_config  # their range is not finite
    @test bad(Float32[NaN], "fp8_e4m3") == :none && bad([1], "int8") == :dtype_mismatch
    @test bad(fill(1.0), "int8") == :shape_mismatch
end
