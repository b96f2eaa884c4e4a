# Timing the library call alone, with the monotonic clock.

"""
The case that was prepared last, so that repeated requests for it read and compile nothing again.
"""
mutable struct Bench
    key::Any
    prepared::Union{Nothing,Prepared}
    first_ns::Union{Nothing,Int}
    last::Any  # what the last call gave: kept, so that no call can be dropped as unused
end

Bench() = Bench(nothing, nothing, nothing, nothing)

"""
    measure(bench, warmup, samples, min_sample_ns) -> (evals, samples_ns, bytes, cpu_ns)

Time per evaluation of `samples` samples, each of `evals` evaluations that together take at least
`min_sample_ns`; what one call allocates; and the processor time of all samples together, `nothing` where the
system does not tell.
"""
function measure(bench::Bench, warmup::Int, samples::Int, min_sample_ns::Int)
    if bench.first_ns === nothing
        bench.first_ns = elapsed(bench, 1)
    end
    for _ in 1:warmup
        elapsed(bench, 1)
    end
    before = Base.gc_bytes()
    since = processor_time()
    evals, spent = 1, [elapsed(bench, 1)]
    bytes = Int(Base.gc_bytes() - before)
    # No more than `samples` of them are ever there: the last one ends the loop, or all are taken again.
    while length(spent) < samples || minimum(spent) < min_sample_ns
        if minimum(spent) < min_sample_ns
            # A little more than the fastest suggests, and never more than ten times as many at once.
            fastest = max(minimum(spent), 1)
            evals = clamp(ceil(Int, 1.1 * evals * min_sample_ns / fastest), evals + 1, 10 * evals)
            empty!(spent)
            since = processor_time()
        end
        push!(spent, elapsed(bench, evals))
    end
    cpu_ns = since === nothing ? nothing : processor_time() - since
    return evals, spent ./ evals, bytes, cpu_ns
end

# What all threads of the process have used, in nanoseconds; `nothing` on a system without POSIX.
function processor_time()
    Sys.isunix() || return nothing
    now = Ref{NTuple{2,Clong}}()  # seconds, nanoseconds
    clock = Sys.isapple() ? 12 : 2  # CLOCK_PROCESS_CPUTIME_ID
    status = ccall(:clock_gettime, Cint, (Cint, Ptr{Cvoid}), clock, now)
    return status == 0 ? Int(now[][1]) * 1_000_000_000 + Int(now[][2]) : nothing
end

elapsed(bench::Bench, evals::Int) = elapsed(bench.prepared.call, bench, evals)

# Compiled for the very call, so that the loop adds no dynamic dispatch to it.
function elapsed(call::F, bench::Bench, evals::Int) where {F<:Function}
    start = time_ns()
    for _ in 1:evals
        bench.last = call()
    end
    return Int(time_ns() - start)
end
