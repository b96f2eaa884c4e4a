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
    measure(bench, warmup, samples, min_sample_ns) -> (evals, samples_ns, bytes)

Time per evaluation of `samples` samples, each of `evals` evaluations that together take at least
`min_sample_ns`, and what one call allocates.
"""
function measure(bench::Bench, warmup::Int, samples::Int, min_sample_ns::Int)
    if bench.first_ns === nothing
        bench.first_ns = elapsed(bench, 1)
    end
    for _ in 1:warmup
        elapsed(bench, 1)
    end
    before = Base.gc_bytes()
    evals, spent = 1, [elapsed(bench, 1)]
    bytes = Int(Base.gc_bytes() - before)
    while length(spent) < samples || minimum(spent) < min_sample_ns
        if minimum(spent) < min_sample_ns
            # A little more than the fastest suggests, and never more than ten times as many at once.
            fastest = max(minimum(spent), 1)
            evals = clamp(ceil(Int, 1.1 * evals * min_sample_ns / fastest), evals + 1, 10 * evals)
            empty!(spent)
        end
        push!(spent, elapsed(bench, evals))
    end
    samples_ns = spent[end-samples+1:end] ./ evals
    return evals, samples_ns, bytes
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
