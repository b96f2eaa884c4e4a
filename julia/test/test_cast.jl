using RosettaAttention: narrow, nearest, widened

bits(x) = reinterpret(UInt16, x)
all_codes(T) = reinterpret(T, collect(0x0000:0xffff))

# The value of a code by the definition of the format, with `fraction` bits after the point and bias `bias`.
function decoded(code::UInt16, fraction::Int, bias::Int)
    exponents = 15 - fraction
    e, f = Int(code >> fraction) & (2^exponents - 1), Int(code) & (2^fraction - 1)
    sign = code >> 15 == 0 ? 1.0 : -1.0
    e == 2^exponents - 1 && return f == 0 ? sign * Inf : NaN
    e == 0 && return sign * ldexp(Float64(f), 1 - bias - fraction)
    return sign * ldexp(Float64(2^fraction + f), e - bias - fraction)
end

@testset "all codes of $T" for (T, fraction, bias) in ((Float16, 10, 15), (BFloat16, 7, 127))
    codes = all_codes(T)
    values = [decoded(code, fraction, bias) for code in 0x0000:0xffff]
    @test isequal(Float64.(codes), values) && isequal(Float64.(widened(codes)), values)
    @test isequal(cast(cast(codes, Float32), T), codes) && isequal(cast(values, T), codes)
    numbers = .!isnan.(values)
    @test bits.(cast(values, T))[numbers] == collect(0x0000:0xffff)[numbers]
    @test all(isnan, cast(values, T)[.!numbers])

    # What lies between two neighbours goes to the nearer one, a tie to the even one.
    infinite = bits(nearest(T, Inf))
    for code in 0x0000:infinite-0x0001
        low = values[code+1]
        high = code + 0x0001 == infinite ? 2 * low - values[code] : values[code+2]
        middle = (low + high) / 2
        even = iseven(code) ? code : code + 0x0001
        good = bits(nearest(T, middle)) == even && bits(nearest(T, -middle)) == even | 0x8000
        good &= bits(nearest(T, prevfloat(middle))) == code
        good &= bits(nearest(T, nextfloat(middle))) == code + 0x0001
        good || @test (T, code) == "rounds to the nearest"
    end
    @test bits.(nearest.(T, [0.0, -0.0, 5e-324, Inf, -Inf])) == [0, 0x8000, 0, infinite, infinite | 0x8000]
end

@testset "cast" begin
    # just above a tie of Float16 that Float32 would round to the tie itself, and then to even
    x = 1 + 2.0^-11 + 2.0^-40
    @test Float16(1) == nearest(Float16, Float32(x)) < nearest(Float16, x)
    @test nearest(Float16, 65519.99) == 65504 && nearest(Float16, 65520.0) == Inf
    @test isnan(nearest(Float16, reinterpret(Float32, 0x7f800001)))  # the payload is cut off, NaN is not
    @test cast([1e-40], Float32) == Float32[1e-40] && cast([1e39], Float32) == [Inf32]
    @test cast(BFloat16[257], Float16) == Float16[256]
    @test cast(Float16[1/3], Float64) == [Float64(Float16(1/3))]
    @test same(cast(fill(0.5), BFloat16), fill(BFloat16(0.5))) && size(cast(zeros(2, 0), Float16)) == (2, 0)
    @test cast(view([1.0 2.0; 3.0 4.0], 2, :), Float16) == Float16[3, 4]
    @test code_of(() -> cast([1.0], Int)) == :unsupported
    @test code_of(() -> cast([1], Float16)) == code_of(() -> cast(1.0, Float16)) == :dtype_mismatch
end

@testset "BFloat16" begin
    @test BFloat16(257) == BFloat16(256.0f0) && BFloat16(4095) == BFloat16(4096)  # half to even
    @test BFloat16(1) < BFloat16(2) <= BFloat16(2) && isfinite(BFloat16(1)) && !isfinite(BFloat16(Inf))
    @test isnan(BFloat16(NaN)) && isinf(BFloat16(-Inf)) && signbit(BFloat16(-0.0))
    @test !isequal(BFloat16(0.0), BFloat16(-0.0)) && zero(BFloat16) == BFloat16(0)
    @test sprint(show, BFloat16(1.5)) == "BFloat16(1.5)" && BFloat16(Float16(0.1)) == BFloat16(0.1)
    @test promote_type(BFloat16, Float32) == Float32 && zeros(BFloat16, 2) == [BFloat16(0), BFloat16(0)]
end

# Every op on halves is the op on their widened values, each result rounded once; an lse stays Float32.
@testset "ops in $T" for T in (Float16, BFloat16)
    rng = MersenneTwister(20)
    half(dims...) = narrow(randn(rng, dims...), T)
    wide(x) = x isa AbstractArray ? widened(x) : x
    function agrees(call, inputs...)
        got, want = call(inputs...), call(map(wide, inputs)...)
        got isa AbstractArray && return same(got, narrow(want, T))
        return all(name -> same(got[name], name == :lse || !(eltype(want[name]) <: AbstractFloat) ?
            want[name] : narrow(want[name], T)), keys(want))
    end
    q, k, v = half(4, 3, 4, 2), half(4, 5, 2, 2), half(3, 5, 2, 2)
    @test agrees(softmax, q)
    @test eltype(softmax_lse(q)[2]) == Float32
    biased(q, k, v, bias, sinks) = sdpa_steps(q, k, v; bias = bias, sinks = sinks, softcap = 2)
    @test agrees(biased, q, k, v, half(5), half(4))
    @test agrees((q, k, v) -> flash(q, k, v; dropout = Dropout(0.5, 1)), q, k, v)
    @test agrees((q, k, v) -> sparse_steps(q, k, v, Window(1, 1)), q, k, v)
    @test agrees(rope_steps, q) && agrees(sinusoidal_steps, half(4, 3, 2)) && agrees(alibi_steps, q)
    @test agrees(layer_norm_steps, q, half(4)) && agrees(gelu, q) && agrees(swiglu, q, q)
    @test agrees(linear_attention, q, k, v) && agrees(x -> dropout_steps(x, Dropout(0.5, 1)), q)
    weights = [half(8, 8) for _ in 1:4]
    layers(w...) = MultiHeadAttention(w...; num_heads = 2, q_norm = w[1][1:4], rope = Rope())
    @test agrees((x, w...) -> mha_steps(layers(w...), x), half(8, 3, 2), weights...)
    @test code_of(() -> sdpa(q, widened(k), v)) == :dtype_mismatch
    @test code_of(() -> merge_states(q, zeros(T, 3, 4, 2), q, zeros(T, 3, 4, 2))) == :dtype_mismatch
    merged = merge_states(q, zeros(Float32, 3, 4, 2), q, zeros(Float32, 3, 4, 2))
    @test same(merged.output, q) && eltype(merged.lse) == Float32

    # a cache stores what it was given, NaN's own bits too, and attends in Float32
    cache = KVCache{T}(2, 2, 4, 3)
    append!(cache, k, v)
    held_k, held_v, _ = read(cache)
    @test same(held_k, k) && same(held_v, v)
    steps = attend_steps(cache, q)
    whole = attend_steps(append!(KVCache{Float32}(2, 2, 4, 3), widened(k), widened(v)), widened(q))
    @test same(steps.output, narrow(whole.output, T)) && same(steps.lse, whole.lse)
    @test code_of(() -> append!(cache, widened(k), widened(v))) == :dtype_mismatch
    @test code_of(() -> attend(cache, widened(q))) == :dtype_mismatch
end
