# The checks of softmax, of attention, and of the ops around its states.

function check_softmax(x, sink)
    @nospecialize
    check_float("softmax", "x", x)
    ndims(x) >= 1 || reject(:shape_mismatch, "softmax", "x", "at least one dimension", "rank 0")
    sink === nothing && return nothing
    check_eltype("softmax", "sink", sink, eltype(x))
    return check_broadcast("softmax", "sink", sink, Base.tail(size(x)))
end

# Against the size (Tk, Tq, Hq, B) that the mask is asked for.
function check_mask(name::String, @nospecialize(mask), dims::NTuple{4,Int})
    mask isa Mask || reject(:invalid_config, name, "mask", "a Mask", typeof(mask))
    kv_len, _, _, batch = dims
    if mask.keep !== nothing
        check_eltype(name, "mask", mask.keep, Bool)
        check_broadcast(name, "mask", mask.keep, dims)
    end
    check_flag(name, "causal", mask.causal)
    check_window(name, mask.window)
    check_lengths(name, "kv_lengths", mask.kv_lengths, batch, kv_len)
    check_like(name, "kv_positions", mask.kv_positions, Int64, (kv_len, batch))
    return check_q_offset(name, mask.q_offset, batch)
end

function check_window(name::String, @nospecialize(window))
    window === nothing && return nothing
    pair = window isa Tuple && length(window) == 2
    pair || reject(:invalid_config, name, "window", "a pair (left, right)", repr(window))
    for side in window
        good = side === nothing || (is_integer(side) && side >= 0)
        good || reject(:invalid_config, name, "window", "nothing or an integer >= 0 a side", repr(window))
    end
    return nothing
end

# An integer for all rows, or Int64 (B,).
function check_q_offset(name::String, @nospecialize(q_offset), batch::Int)
    q_offset isa AbstractArray || return check_offset(name, "q_offset", q_offset)
    return check_like(name, "q_offset", q_offset, Int64, (batch,))
end

function check_sdpa(name::String, q, k, v, mask, bias, scale, softcap, sinks, dropout)
    @nospecialize
    check_heads(name, q, k, v)
    Hq = size(q, 3)
    check_like(name, "sinks", sinks, eltype(q), (Hq,))
    dims = (size(k, 2), size(q, 2), Hq, size(q, 4))
    return check_options(name, eltype(q), dims, mask, bias, scale, softcap, dropout)
end

# The rungs that compute in Float32 or Float64 and in nothing else.
function check_wide(name::String, q)
    T = compute_type(eltype(q))
    T === Float32 || T === Float64 || reject(:unsupported, name, "q", "Float32, Float64 or a half type", T)
    return nothing
end

# q (D, Tq, Hq, B), k (D, Tk, Hkv, B), v (Dv, Tk, Hkv, B), of one float type.
function check_heads(name::String, q, k, v)
    @nospecialize
    check_float(name, "q", q)
    check_eltype(name, "k", k, eltype(q))
    check_eltype(name, "v", v, eltype(q))
    check_rank(name, "q", q, "(D, T, H, B)", 4)
    check_rank(name, "k", k, "(D, T, H, B)", 4)
    check_rank(name, "v", v, "(D, T, H, B)", 4)
    D, _, Hq, B = size(q)::NTuple{4,Int}
    Dk, Tk, Hkv, Bk = size(k)::NTuple{4,Int}
    _, Tv, Hv, Bv = size(v)::NTuple{4,Int}
    D >= 1 || reject(:shape_mismatch, name, "q", "head size of at least 1", D)
    Bk == B || reject(:shape_mismatch, name, "k", "batch $B as in q", Bk)
    Bv == B || reject(:shape_mismatch, name, "v", "batch $B as in q", Bv)
    Dk == D || reject(:shape_mismatch, name, "k", "head size $D as in q", Dk)
    Hv == Hkv || reject(:shape_mismatch, name, "v", "$Hkv heads as in k", Hv)
    Tv == Tk || reject(:shape_mismatch, name, "v", "length $Tk as in k", Tv)
    divides = Hkv == 0 ? Hq == 0 : Hq % Hkv == 0
    divides || reject(:shape_mismatch, name, "q", "a multiple of the $Hkv key/value heads", "$Hq heads")
    return nothing
end

# The options that all kinds of softmax attention share, for scores of element type T and size (Tk, Tq, Hq,
# B).
function check_options(name::String, T, dims::NTuple{4,Int}, mask, bias, scale, softcap, dropout)
    @nospecialize
    check_scale(name, scale)
    check_softcap(name, softcap)
    check_mask(name, mask, dims)
    if bias !== nothing
        check_eltype(name, "bias", bias, T)
        check_broadcast(name, "bias", bias, dims)
    end
    dropout === nothing || check_dropout(name, dropout)
    return nothing
end

check_softcap(name::String, @nospecialize(softcap)) =
    softcap === nothing || check_positive(name, "softcap", softcap)

function check_dropout(name::String, @nospecialize(dropout))
    dropout isa Dropout || reject(:invalid_config, name, "dropout", "a Dropout", repr(dropout))
    p = dropout.p
    good = is_finite_number(p) && 0 <= p <= 1
    good || reject(:invalid_config, name, "p", "a number from 0 to 1", repr(p))
    return check_whole(name, "seed", dropout.seed, 0, LARGEST_SEED)
end

function check_dropout_op(name::String, x, dropout, offset)
    @nospecialize
    check_float(name, "x", x)
    check_dropout(name, dropout)
    good = is_integer(offset) && offset >= 0
    good || reject(:invalid_config, name, "offset", "an integer >= 0", repr(offset))
    return nothing
end

function check_cast(name::String, x, T)
    @nospecialize
    check_float(name, "x", x)
    known = T === Float16 || T === BFloat16 || T === Float32 || T === Float64
    known || reject(:unsupported, name, "T", "Float16, BFloat16, Float32 or Float64", T)
    return nothing
end

# Two states of one size; the log-sum-exps are of the type that is computed in.
function check_merge(name::String, a_output, a_lse, b_output, b_lse)
    @nospecialize
    check_float(name, "a_output", a_output)
    T = eltype(a_output)
    ndims(a_output) >= 1 || reject(:shape_mismatch, name, "a_output", "at least one dimension", "rank 0")
    check_exact(name, "a_lse", a_lse, compute_type(T), Base.tail(size(a_output)))
    check_exact(name, "b_output", b_output, T, size(a_output))
    return check_exact(name, "b_lse", b_lse, compute_type(T), size(a_lse))
end

# q (D, Hq, Nq), k (D, Hkv, Nk), v (Dv, Hkv, Nk): the sequences one after the other.
function check_varlen(name::String, q, k, v, cu_seqlens_q, cu_seqlens_k, mask, scale, softcap)
    @nospecialize
    for (argument, x) in (("q", q), ("k", k), ("v", v))
        check_array(name, argument, x)
        check_rank(name, argument, x, "(D, H, N)", 3)
    end
    as_batch(x) = reshape(x, size(x, 1), size(x, 3), size(x, 2), 1)
    check_heads(name, as_batch(q), as_batch(k), as_batch(v))
    check_seqlens(name, "cu_seqlens_q", cu_seqlens_q, size(q, 3))
    check_seqlens(name, "cu_seqlens_k", cu_seqlens_k, size(k, 3))
    check_size(name, "cu_seqlens_k", cu_seqlens_k, size(cu_seqlens_q))
    check_scale(name, scale)
    check_softcap(name, softcap)
    check_flag(name, "causal", mask.causal)
    check_window(name, mask.window)
    return check_q_offset(name, mask.q_offset, length(cu_seqlens_q) - 1)
end

# Int64 (S + 1,): from 0 to the number of rows, and never down.
function check_seqlens(name::String, argument::String, @nospecialize(ends), rows::Int)
    check_eltype(name, argument, ends, Int64)
    check_rank(name, argument, ends, "(S + 1)", 1)
    length(ends) >= 1 || reject(:shape_mismatch, name, argument, "at least one value", "none")
    good = first(ends) == 0 && last(ends) == rows && issorted(ends)
    good || reject(:invalid_config, name, argument, "ends that rise from 0 to $rows", repr(collect(ends)))
    return nothing
end

function check_scoring(name::String, form, q, k, v, w_q, w_k, w_v, w, kv_lengths)
    @nospecialize
    check_choice(name, "form", form, FORMS)
    check_float(name, "q", q)
    T = eltype(q)
    for (argument, x) in (("q", q), ("k", k), ("v", v))
        check_eltype(name, argument, x, T)
        check_rank(name, argument, x, "(D, T, B)", 3)
    end
    Dq, _, B = size(q)::NTuple{3,Int}
    Dk, Tk, Bk = size(k)::NTuple{3,Int}
    _, Tv, Bv = size(v)::NTuple{3,Int}
    Bk == B || reject(:shape_mismatch, name, "k", "batch $B as in q", Bk)
    Bv == B || reject(:shape_mismatch, name, "v", "batch $B as in q", Bv)
    Tv == Tk || reject(:shape_mismatch, name, "v", "length $Tk as in k", Tv)
    Dq >= 1 || reject(:shape_mismatch, name, "q", "a width of at least 1", Dq)
    Dk >= 1 || reject(:shape_mismatch, name, "k", "a width of at least 1", Dk)
    weights = (("w_q", w_q, form == "additive"), ("w_k", w_k, form == "additive"))
    weights = (weights..., ("w_v", w_v, form == "additive"), ("w", w, form == "general"))
    for (argument, weight, taken) in weights
        taken || weight === nothing || reject(:invalid_config, name, argument, "none for $form", "an array")
        taken && weight === nothing && reject(:invalid_config, name, argument, "an array for $form", "none")
    end
    if form == "additive"
        check_weight(name, "w_q", w_q, T, Dq)
        check_weight(name, "w_k", w_k, T, Dk)
        columns = size(w_q, 2)
        good = size(w_k, 2) == columns
        good || reject(:shape_mismatch, name, "w_k", "$columns columns as in w_q", size(w_k, 2))
        check_exact(name, "w_v", w_v, T, (columns,))
    elseif form == "general"
        check_exact(name, "w", w, T, (Dk, Dq))
    else
        Dk == Dq || reject(:shape_mismatch, name, "k", "width $Dq as in q", Dk)
    end
    return check_lengths(name, "kv_lengths", kv_lengths, B, Tk)
end

# h (C, T, B), w_1 (C, A), w_2 (A, R).
function check_structured(name::String, h, w_1, w_2, kv_lengths)
    @nospecialize
    check_float(name, "h", h)
    check_rank(name, "h", h, "(C, T, B)", 3)
    check_weight(name, "w_1", w_1, eltype(h), size(h, 1))
    check_weight(name, "w_2", w_2, eltype(h), size(w_1, 2))
    return check_lengths(name, "kv_lengths", kv_lengths, size(h, 3), size(h, 2))
end
