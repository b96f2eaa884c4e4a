# What a call must satisfy, tested once at the edge; the algorithms behind it trust their arguments. Here is
# what all checks are made of; those of the ops are in the files beside this one.
#
# Every message names the function, the argument, what was expected and what came. Sizes in a message are
# Julia's, so (D, T, H, B). The checks are compiled once for all types of arguments: `@nospecialize`.

const LARGEST_SEED = 2^53 - 1
# No number of an element or position is beyond this: sums of a few stay within 64 bits.
const FARTHEST = 2^62

function check_array(name::String, argument::String, @nospecialize(x))
    x isa AbstractArray || reject(:dtype_mismatch, name, argument, "an array", typeof(x))
    Base.has_offset_axes(x) && reject(:shape_mismatch, name, argument, "indices that start at 1", axes(x))
    return nothing
end

function check_float(name::String, argument::String, @nospecialize(x))
    check_array(name, argument, x)
    good = eltype(x) <: AbstractFloat && isconcretetype(eltype(x))
    good || reject(:dtype_mismatch, name, argument, "a float type", eltype(x))
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

# Element type and size at once.
function check_exact(name::String, argument::String, @nospecialize(x), @nospecialize(T), @nospecialize(dims))
    check_eltype(name, argument, x, T)
    return check_size(name, argument, x, dims)
end

# The same of an argument that may be absent.
check_like(name::String, argument::String, @nospecialize(x), @nospecialize(T), @nospecialize(dims)) =
    x === nothing ? nothing : check_exact(name, argument, x, T, dims)

# Element type and rank of a matrix of weights, which are (in, out); `rows` is `in`, where it is known.
function check_weight(name::String, argument::String, @nospecialize(w), @nospecialize(T), rows = nothing)
    @nospecialize rows
    check_eltype(name, argument, w, T)
    check_rank(name, argument, w, "(in, out)", 2)
    good = rows === nothing || size(w, 1) == rows
    good || reject(:shape_mismatch, name, argument, "$rows rows", size(w, 1))
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

function check_whole(name::String, argument::String, @nospecialize(n), least::Int, most::Int = FARTHEST)
    good = is_integer(n) && least <= n <= most
    good && return nothing
    open = most == FARTHEST && !(is_integer(n) && n > most)
    range = open ? "an integer >= $least" : "an integer from $least to $most"
    reject(:invalid_config, name, argument, range, repr(n))
end

# An integer of either sign, `nothing` = 0; any one is good, see `position_of`.
function check_offset(name::String, argument::String, @nospecialize(n))
    good = n === nothing || is_integer(n)
    good || reject(:invalid_config, name, argument, "an integer", repr(n))
    return nothing
end

function check_flag(name::String, argument::String, @nospecialize(x))
    x isa Bool || reject(:invalid_config, name, argument, "true or false", repr(x))
    return nothing
end

function check_positive(name::String, argument::String, @nospecialize(x))
    good = is_finite_number(x) && x > 0
    good || reject(:invalid_config, name, argument, "a finite number > 0", repr(x))
    return nothing
end

function check_eps(name::String, argument::String, @nospecialize(eps))
    good = is_finite_number(eps) && eps >= 0
    good || reject(:invalid_config, name, argument, "a finite number >= 0", repr(eps))
    return nothing
end

function check_scale(name::String, @nospecialize(scale))
    good = scale === nothing || is_finite_number(scale)
    good || reject(:invalid_config, name, "scale", "a finite number", repr(scale))
    return nothing
end

function check_choice(name::String, argument::String, @nospecialize(value), choices)
    @nospecialize choices
    good = value isa AbstractString && value in choices
    good || reject(:invalid_config, name, argument, "one of " * join(choices, ", "), repr(value))
    return nothing
end

# Int64 (B,), each 0 <= n <= limit; `nothing` = all of them.
function check_lengths(name::String, argument::String, @nospecialize(lengths), batch::Int, limit::Int)
    lengths === nothing && return nothing
    check_eltype(name, argument, lengths, Int64)
    check_size(name, argument, lengths, (batch,))
    for n in lengths
        0 <= n <= limit || reject(:invalid_config, name, argument, "values from 0 to $limit", n)
    end
    return nothing
end

# How many heads there are, and how many of them have keys and values of their own.
function check_head_counts(name::String, @nospecialize(num_heads), @nospecialize(num_kv_heads))
    check_whole(name, "num_heads", num_heads, 1)
    good = is_integer(num_kv_heads) && num_kv_heads >= 1 && num_heads % num_kv_heads == 0
    divisor = "an integer >= 1 that divides num_heads = $num_heads"
    good || reject(:invalid_config, name, "num_kv_heads", divisor, repr(num_kv_heads))
    return nothing
end

# An integer as a position: one beyond all of them is taken for the farthest.
position_of(::Nothing) = 0
position_of(n::Integer) = n <= -FARTHEST ? -FARTHEST : n >= FARTHEST ? FARTHEST : Int(n)

is_integer(@nospecialize(x)) = x isa Integer && !(x isa Bool)
is_finite_number(@nospecialize(x)) = x isa Real && !(x isa Bool) && isfinite(x)
