# Linear attention: a feature map in place of the softmax's exponential, here in its parallel form.
#
#     output_i = Σ_j (f(q_i) · f(k_j)) v_j / Σ_j f(q_i) · f(k_j),   f(x) = elu(x) + 1 > 0
#
# The sums over j can be taken first, as S = Σ_j v_j f(k_j)' and z = Σ_j f(k_j), which is a state of fixed
# size: the recurrent and the chunked form (linear_recurrent.jl, linear_chunked.jl) give the same numbers from
# it.
#
# Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query and key lengths, D and
# Dv head sizes of keys and values.
#
# Source: Katharopoulos et al., "Transformers are RNNs", 2020, sections 3.2 and 3.3.

"""
    linear_attention(q, k, v; causal = false, state, norm) -> (output, state, norm)

Linear attention of `q` `(D, Tq, Hq, B)` over `k` `(D, Tk, Hkv, B)` and `v` `(Dv, Tk, Hkv, B)`: `output` `(Dv,
Tq, Hq, B)`, and the state with all keys in it, `state` `(Dv, D, Hkv, B)` and `norm` `(D, Hkv, B)`.

- `causal`: query i sees the keys up to i; then Tq = Tk
- `state`, `norm`: those of an earlier call, whose keys all queries see; both or neither

The output is 0 where its denominator is.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function linear_attention(q, k, v; causal = false, state = nothing, norm = nothing)
    @nospecialize causal state norm
    check_linear("linear_attention", q, k, v, causal, state, norm)
    inputs = (widened(q), widened(k), widened(v), causal, widened(state), widened(norm))
    return narrowed(linear_parallel(inputs...), eltype(q))
end

function linear_parallel(q, k, v, causal::Bool, state, norm)
    @nospecialize state norm
    T = eltype(q)
    D, Tq, Hq, B = size(q)
    Dv, Tk, Hkv, _ = size(v)
    G = Hq ÷ max(Hkv, 1)
    S, z = linear_state(T, (Dv, D, Hkv, B), state, norm)

    # 1. feature map: positive, so that no sum of similarities cancels
    fq, fk = map(feature, q), map(feature, k)  # (D, Tq, Hq, B), (D, Tk, Hkv, B)

    # 2. similarities: of every query with every key of its head's group
    similarities = zeros(T, Tk, Tq, Hq, B)  # (Tk, Tq, Hq, B)
    for b in 1:B, h in 1:Hq, i in 1:Tq, j in 1:Tk, d in 1:D
        similarities[j, i, h, b] += fq[d, i, h, b] * fk[d, j, fld1(h, G), b]
    end

    # 3. mask: by selection; nothing of a later key is read
    last_keys = keys_seen(causal, Tq, Tk)  # (Tq,)

    # 4. weighted sum: of the values, and of ones; the state stands for all keys before
    sums, total = zeros(T, Dv, Tq, Hq, B), zeros(T, Tq, Hq, B)  # (Dv, Tq, Hq, B), (Tq, Hq, B)
    for b in 1:B, h in 1:Hq, i in 1:Tq
        g = fld1(h, G)
        total[i, h, b] = read_state!(view(sums, :, i, h, b), S, z, fq, i, h, g, b)
        for j in 1:last_keys[i]
            total[i, h, b] += similarities[j, i, h, b]
            for e in 1:Dv
                sums[e, i, h, b] += similarities[j, i, h, b] * v[e, j, g, b]
            end
        end
    end

    # 5. normalise: 0 where nothing was seen
    output = zeros(T, Dv, Tq, Hq, B)  # (Dv, Tq, Hq, B)
    for b in 1:B, h in 1:Hq, i in 1:Tq
        output[:, i, h, b] = divided(view(sums, :, i, h, b), total[i, h, b])
    end

    # 6. state: all keys are in it, whoever saw them
    for b in 1:B, g in 1:Hkv, j in 1:Tk
        write_state!(S, z, fk, v, j, g, b)
    end
    return (output = output, state = S, norm = z)
end

# elu(x) + 1
feature(x) = x > 0 ? x + one(x) : exp(x)

# How many keys each query sees.
keys_seen(causal::Bool, Tq::Int, Tk::Int) = causal ? collect(1:Tq) : fill(Tk, Tq)

# A state to write to: a copy of the one given, or an empty one.
linear_state(::Type{T}, dims, ::Nothing, ::Nothing) where {T} = zeros(T, dims), zeros(T, dims[2:4])
linear_state(::Type{T}, dims, state, norm) where {T} = Array{T,4}(state), Array{T,3}(norm)

# S += v f(k)', z += f(k), for key j.
function write_state!(S, z, fk, v, j, g, b)
    for d in 1:size(S, 2)
        z[d, g, b] += fk[d, j, g, b]
        for e in 1:size(S, 1)
            S[e, d, g, b] += v[e, j, g, b] * fk[d, j, g, b]
        end
    end
end

# S f(q) is added to `sums`, z · f(q) is the result, for query i.
function read_state!(sums, S, z, fq, i, h, g, b)
    total = zero(eltype(z))
    for d in 1:size(S, 2)
        total += z[d, g, b] * fq[d, i, h, b]
        for e in 1:size(S, 1)
            sums[e] += S[e, d, g, b] * fq[d, i, h, b]
        end
    end
    return total
end

divided(sums, total) = total == 0 ? zero(sums) : sums ./ total
