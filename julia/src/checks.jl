# What a call must satisfy, tested once at the edge; the algorithms behind it trust their arguments.
#
# Every message names the function, the argument, what was expected and what came. Sizes in a message are
# Julia's, so (D, T, H, B). The checks are compiled once for all types of arguments: `@nospecialize`.

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
    mask.causal isa Bool || reject(:invalid_config, name, "causal", "true or false", repr(mask.causal))
    mask.window === nothing || check_window(name, mask.window)
    mask.kv_lengths === nothing || check_lengths(name, "kv_lengths", mask.kv_lengths, batch, kv_len)
    q_offset = mask.q_offset
    if q_offset isa AbstractArray
        check_eltype(name, "q_offset", q_offset, Int64)
        check_size(name, "q_offset", q_offset, (batch,))
    else
        good = q_offset === nothing || is_integer(q_offset)
        good || reject(:invalid_config, name, "q_offset", "an integer", repr(q_offset))
    end
    return nothing
end

function check_window(name::String, @nospecialize(window))
    pair = window isa Tuple && length(window) == 2
    pair || reject(:invalid_config, name, "window", "a pair (left, right)", repr(window))
    for side in window
        good = side === nothing || (is_integer(side) && side >= 0)
        good || reject(:invalid_config, name, "window", "nothing or an integer >= 0 a side", repr(window))
    end
    return nothing
end

function check_sdpa(name::String, q, k, v, mask, bias, scale, softcap, sinks)
    @nospecialize
    check_float(name, "q", q)
    check_eltype(name, "k", k, eltype(q))
    check_eltype(name, "v", v, eltype(q))
    check_rank(name, "q", q, "(D, T, H, B)", 4)
    check_rank(name, "k", k, "(D, T, H, B)", 4)
    check_rank(name, "v", v, "(D, T, H, B)", 4)
    D, Tq, Hq, B = size(q)::NTuple{4,Int}
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
    check_options(name, scale, softcap)
    check_mask(name, mask, (Tk, Tq, Hq, B))
    if bias !== nothing
        check_eltype(name, "bias", bias, eltype(q))
        check_broadcast(name, "bias", bias, (Tk, Tq, Hq, B))
    end
    if sinks !== nothing
        check_eltype(name, "sinks", sinks, eltype(q))
        check_size(name, "sinks", sinks, (Hq,))
    end
    return nothing
end

function check_options(name::String, scale, softcap)
    @nospecialize
    good = scale === nothing || is_finite_number(scale)
    good || reject(:invalid_config, name, "scale", "a finite number", repr(scale))
    good = softcap === nothing || (is_finite_number(softcap) && softcap > 0)
    good || reject(:invalid_config, name, "softcap", "a finite number > 0", repr(softcap))
    return nothing
end

# x (C, Tq, B), context (Cc, Tk, B) against the weights of the layer, which are (in, out).
function check_mha(name::String, x, context, layer)
    @nospecialize
    Hq, Hkv = layer.num_heads, layer.num_kv_heads
    (is_integer(Hq) && Hq >= 1) || reject(:invalid_config, name, "num_heads", "an integer >= 1", repr(Hq))
    good = is_integer(Hkv) && Hkv >= 1 && Hq % Hkv == 0
    divisor = "an integer >= 1 that divides num_heads = $Hq"
    good || reject(:invalid_config, name, "num_kv_heads", divisor, repr(Hkv))
    check_float(name, "x", x)
    T = eltype(x)
    check_rank(name, "x", x, "(C, T, B)", 3)
    check_eltype(name, "context", context, T)
    check_rank(name, "context", context, "(C, T, B)", 3)
    C, _, B = size(x)::NTuple{3,Int}
    Cc, _, Bc = size(context)::NTuple{3,Int}
    Bc == B || reject(:shape_mismatch, name, "context", "batch $B as in x", Bc)
    w_q, w_k, w_v, w_o = layer.w_q, layer.w_k, layer.w_v, layer.w_o
    for (argument, w) in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v), ("w_o", w_o))
        check_eltype(name, argument, w, T)
        check_rank(name, argument, w, "(in, out)", 2)
    end
    for (argument, w, heads, width) in (("w_q", w_q, Hq, C), ("w_k", w_k, Hkv, Cc), ("w_v", w_v, Hkv, Cc))
        size(w, 1) == width || reject(:shape_mismatch, name, argument, "$width rows", size(w, 1))
        good = size(w, 2) % heads == 0
        good || reject(:shape_mismatch, name, argument, "columns in $heads equal blocks", size(w, 2))
    end
    D, Dv = size(w_q, 2) ÷ Hq, size(w_v, 2) ÷ Hkv
    good = size(w_k, 2) == Hkv * D
    good || reject(:shape_mismatch, name, "w_k", "$(Hkv * D) columns (head size $D)", size(w_k, 2))
    size(w_o, 1) == Hq * Dv || reject(:shape_mismatch, name, "w_o", "$(Hq * Dv) rows", size(w_o, 1))
    b_q, b_k, b_v, b_o = layer.b_q, layer.b_k, layer.b_v, layer.b_o
    for (argument, b, w) in (("b_q", b_q, w_q), ("b_k", b_k, w_k), ("b_v", b_v, w_v), ("b_o", b_o, w_o))
        b === nothing && continue
        check_eltype(name, argument, b, T)
        check_size(name, argument, b, (size(w, 2),))
    end
    return nothing
end

# Sizes of a cache: integers of at least the number beside them; `capacity` may be absent.
function check_cache_config(name::String, batch, num_kv_heads, head_dim, value_dim, capacity)
    @nospecialize
    sizes = (
        ("batch", batch, 0),
        ("num_kv_heads", num_kv_heads, 1),
        ("head_dim", head_dim, 1),
        ("value_dim", value_dim, 0),
        ("capacity", capacity === nothing ? 0 : capacity, 0),
    )
    for (argument, size, least) in sizes
        good = is_integer(size) && size >= least
        good || reject(:invalid_config, name, argument, "an integer >= $least", repr(size))
    end
    return nothing
end

function check_append(name::String, cache, k, v, lengths)
    @nospecialize
    check_eltype(name, "k", k, eltype(cache))
    check_rank(name, "k", k, "(D, T, H, B)", 4)
    check_size(name, "k", k, (cache.head_dim, size(k, 2), cache.num_kv_heads, cache.batch))
    check_eltype(name, "v", v, eltype(cache))
    check_rank(name, "v", v, "(D, T, H, B)", 4)
    check_size(name, "v", v, (cache.value_dim, size(k, 2), cache.num_kv_heads, cache.batch))
    lengths === nothing || check_lengths(name, "lengths", lengths, cache.batch, size(k, 2))
    return nothing
end

# What the cache needs before it can align the queries; sdpa checks the rest.
function check_attend(name::String, q, mask)
    @nospecialize
    check_float(name, "q", q)
    check_rank(name, "q", q, "(D, T, H, B)", 4)
    mask isa Mask || reject(:invalid_config, name, "mask", "a Mask", typeof(mask))
    good = mask.kv_lengths === nothing
    good || reject(:invalid_config, name, "kv_lengths", "nothing: the cache has its own", "a value")
    return nothing
end

function check_room(name::String, needed::Int, capacity::Union{Nothing,Int})
    fits = capacity === nothing || needed <= capacity
    fits || reject(:capacity_exceeded, name, "k", "at most $capacity positions", needed)
    return nothing
end

# Int64 (B,), each 0 <= n <= limit.
function check_lengths(name::String, argument::String, @nospecialize(lengths), batch::Int, limit::Int)
    check_eltype(name, argument, lengths, Int64)
    check_size(name, argument, lengths, (batch,))
    for n in lengths
        0 <= n <= limit || reject(:invalid_config, name, argument, "values from 0 to $limit", n)
    end
    return nothing
end

# One integer a row, from 0 to what the row holds.
function check_truncate(name::String, @nospecialize(lengths), held::Vector{Int64})
    list = lengths isa Union{AbstractVector,Tuple} && all(is_integer, lengths)
    list || reject(:invalid_config, name, "lengths", "a list of integers", repr(lengths))
    same = length(lengths) == length(held)
    same || reject(:shape_mismatch, name, "lengths", "$(length(held)) values", length(lengths))
    for (n, most) in zip(lengths, held)
        0 <= n <= most || reject(:invalid_config, name, "lengths", "at most the lengths held, $held", repr(n))
    end
    return nothing
end

function check_array(name::String, argument::String, @nospecialize(x))
    x isa AbstractArray || reject(:dtype_mismatch, name, argument, "an array", typeof(x))
    Base.has_offset_axes(x) && reject(:shape_mismatch, name, argument, "indices that start at 1", axes(x))
    return nothing
end

# Float16 is left out: it is to be computed in Float32 and rounded once, which these loops do not do.
function check_float(name::String, argument::String, @nospecialize(x))
    check_array(name, argument, x)
    good = eltype(x) <: AbstractFloat && isconcretetype(eltype(x)) && eltype(x) !== Float16
    good || reject(:dtype_mismatch, name, argument, "a float type of at least 32 bits", eltype(x))
    return nothing
end

function check_eltype(name::String, argument::String, @nospecialize(x), @nospecialize(T))
    check_array(name, argument, x)
    eltype(x) === T || reject(:dtype_mismatch, name, argument, T, eltype(x))
    return nothing
end

function check_rank(name::String, argument::String, @nospecialize(x), letters::String, rank::Int)
    ndims(x) == rank || reject(:shape_mismatch, name, argument, "rank $rank $letters", "rank $(ndims(x))")
    return nothing
end

function check_size(name::String, argument::String, @nospecialize(x), @nospecialize(dims))
    size(x) == dims || reject(:shape_mismatch, name, argument, "size $dims", size(x))
    return nothing
end

# Aligned on the left: every dimension is the target's or 1.
function check_broadcast(name::String, argument::String, @nospecialize(x), @nospecialize(dims))
    fits = ndims(x) <= length(dims)
    for d in 1:min(ndims(x), length(dims))
        fits &= size(x, d) == 1 || size(x, d) == dims[d]
    end
    fits || reject(:shape_mismatch, name, argument, "a size that broadcasts to $dims", size(x))
    return nothing
end

is_integer(@nospecialize(x)) = x isa Integer && !(x isa Bool)
is_finite_number(@nospecialize(x)) = x isa Real && !(x isa Bool) && isfinite(x)
