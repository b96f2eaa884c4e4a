# The checks of evictions by a policy.

# The numbers of a policy, and that the cache can go by it. Gives the budget of each of its heads; `heads` is
# how many have one of their own.
function check_policy(name::String, policy, cache, heads::Int)::Vector{Int}
    @nospecialize
    check_whole(name, "sinks", policy.sinks, 0)
    check_whole(name, "recent", recent_of(policy), 0)
    check_whole(name, "pool", pool_of(policy), 1)
    isodd(pool_of(policy)) || reject(:invalid_config, name, "pool", "an odd integer", repr(policy.pool))
    budgets = policy.budget isa Union{AbstractVector,Tuple} ? policy.budget : (policy.budget,)
    if policy.budget isa Union{AbstractVector,Tuple}
        cache isa PerHeadCache || reject(:invalid_config, name, "budget", "one integer", repr(budgets))
        same = length(budgets) == heads
        same || reject(:shape_mismatch, name, "budget", "$heads values", length(budgets))
    end
    least = Int128(policy.sinks) + Int128(recent_of(policy))
    for n in budgets
        check_whole(name, "budget", n, 0)
        good = n == 0 || n >= least
        good || reject(:invalid_config, name, "budget", "sinks + recent = $least or more, or 0", repr(n))
    end
    policy isa HeavyHitters && check_tracked(name, cache)
    policy isa SnapKV && check_observers(name, policy, cache)
    return length(budgets) == heads ? Int[n for n in budgets] : fill(Int(first(budgets)), heads)
end

function check_tracked(name::String, @nospecialize(cache))
    good = tracks(cache)
    good || reject(:invalid_config, name, "cache", "one that tracks the weights of its slots", typeof(cache))
    return nothing
end

# The queries of SnapKV.
function check_observers(name::String, policy, cache)
    @nospecialize
    q = policy.q
    check_attend(name, cache, q, held_slots(cache), Mask(), nothing, policy.scale, nothing)
    good = size(q, 2) >= 1
    good || reject(:shape_mismatch, name, "q", "at least one query", size(q, 2))
    return nothing
end
