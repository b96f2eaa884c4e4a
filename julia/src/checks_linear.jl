# The checks of the linear family.

function check_linear(name::String, q, k, v, causal, state, norm)
    @nospecialize
    check_heads(name, q, k, v)
    check_flag(name, "causal", causal)
    Tq, Tk = size(q, 2), size(k, 2)
    good = causal !== true || Tq == Tk
    good || reject(:shape_mismatch, name, "k", "length $Tq as in q when causal", Tk)
    both = (state === nothing) == (norm === nothing)
    both || reject(:invalid_config, name, "state", "state and norm together", "one of them")
    D, Dv, Hkv, B = size(k, 1), size(v, 1), size(k, 3), size(k, 4)
    check_like(name, "state", state, eltype(q), (Dv, D, Hkv, B))
    return check_like(name, "norm", norm, eltype(q), (D, Hkv, B))
end

function check_gated(name::String, q, k, v, rule, state, decay, beta, scale)
    @nospecialize
    check_choice(name, "rule", rule, RULES)
    check_heads(name, q, k, v)
    T, len = eltype(q), size(q, 2)
    D, Dv, Hkv, B = size(k, 1), size(v, 1), size(k, 3), size(k, 4)
    size(k, 2) == len || reject(:shape_mismatch, name, "k", "length $len as in q", size(k, 2))
    check_scale(name, scale)
    check_like(name, "state", state, T, (Dv, D, Hkv, B))
    gates = (
        ("decay", decay, occursin("gated", rule), ((D, len, Hkv, B), (1, len, Hkv, B))),
        ("beta", beta, occursin("delta", rule), ((1, len, Hkv, B), (1, len, 1, B))),
    )
    for (argument, gate, taken, sizes) in gates
        taken || gate === nothing || reject(:invalid_config, name, argument, "none for $rule", "an array")
        taken && gate === nothing && reject(:invalid_config, name, argument, "an array for $rule", "none")
        taken || continue
        check_eltype(name, argument, gate, T)
        good = size(gate) in sizes
        good || reject(:shape_mismatch, name, argument, "size $(sizes[1]) or $(sizes[2])", size(gate))
    end
    return nothing
end
