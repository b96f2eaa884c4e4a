# The rungs of sdpa against each other, in one process and interleaved: how many times as fast each is as the
# first one named. Started as
#
#     julia --project=julia --startup-file=no julia/experiments/simd_ratio.jl [RUNGS [SHAPES [SECONDS]]]
#
# RUNGS: of naive, flash, blocked, simd, simd4, simd8, simd16 (registers of so many Float32), threads (one
# task a thread that Julia was started with); blocked,simd without. SHAPES: those below, all without.
# SECONDS: of each shape, 2. Every round calls every rung once, in an order that rotates; the minimum counts.

import LinearAlgebra
using Printf: @printf
using RosettaAttention

const SHAPES = [  # name => (Hq, Hkv, Tq, Tk, D, causal)
    "256" => (8, 8, 256, 256, 64, false),
    "512" => (8, 8, 512, 512, 64, false),
    "2048" => (2, 2, 2048, 2048, 64, false),
    "D128" => (2, 2, 2048, 2048, 128, false),
    "D80" => (8, 8, 512, 512, 80, false),
    "1000" => (8, 8, 1000, 1000, 64, false),
    "causal-256" => (8, 8, 256, 256, 64, true),
    "causal-512" => (8, 8, 512, 512, 64, true),
    "causal-2048" => (2, 2, 2048, 2048, 64, true),
    "decode-512" => (8, 8, 1, 512, 64, false),
    "decode-1024" => (32, 8, 1, 1024, 128, false),
    "decode-4096" => (32, 8, 1, 4096, 128, false),
    "small" => (4, 4, 16, 16, 32, false),
]

function rung_named(name)
    name == "naive" && return sdpa
    name == "flash" && return flash
    name == "blocked" && return blocked
    name == "simd" && return simd
    tasks = Threads.nthreads()
    name == "threads" && return (heads...; options...) -> simd(heads...; options..., tasks = tasks)
    lanes = match(r"^simd(4|8|16)$", name)
    lanes === nothing && error("no rung $name")
    forced = "ROSETTA_SIMD_LANES" => lanes[1]
    return (heads...; options...) -> withenv(() -> simd(heads...; options...), forced)
end

# The shortest time of each rung, in nanoseconds.
function interleaved(rungs, heads, mask, seconds)
    shortest = fill(typemax(UInt64), length(rungs))
    call(rung) = rung(heads...; mask = mask)
    foreach(call, rungs)  # compiles
    round, stop = 0, time() + seconds
    while time() < stop || round < length(rungs)
        for n in circshift(1:length(rungs), round)
            started = time_ns()
            call(rungs[n])
            shortest[n] = min(shortest[n], time_ns() - started)
        end
        round += 1
    end
    return Int.(shortest)
end

function main(arguments)
    names = split(get(arguments, 1, "blocked,simd"), ',')
    wanted = split(get(arguments, 2, join(first.(SHAPES), ',')), ',')
    seconds = parse(Float64, get(arguments, 3, "2"))
    LinearAlgebra.BLAS.set_num_threads(1)
    println("lanes of a register: ", RosettaAttention.native_lanes(), ", threads: ", Threads.nthreads())
    for (shape, (Hq, Hkv, Tq, Tk, D, causal)) in SHAPES
        shape in wanted || continue
        heads = (randn(Float32, D, Tq, Hq, 1), randn(Float32, D, Tk, Hkv, 1), randn(Float32, D, Tk, Hkv, 1))
        times = interleaved(rung_named.(names), heads, Mask(causal = causal), seconds)
        operations = 4 * D * Tq * Tk * Hq / (causal ? 2 : 1)
        for (name, ns) in zip(names, times)
            rates = (operations / ns, 8 * D * Tk * Hkv / ns, times[1] / ns)
            @printf("%-12s %-8s %10.1f us %8.1f GFLOP/s %7.1f GB/s %7.2f\n", shape, name, ns / 1000, rates...)
        end
    end
end

main(ARGS)
