# The checks of what knows about positions.

# x (D, T, H, B); tables (R/2, P) take the place of a base and a scaling.
function check_rope(name::String, x, options, positions, cosines, sines)
    @nospecialize
    check_float(name, "x", x)
    check_rank(name, "x", x, "(D, T, H, B)", 4)
    D, len, _, B = size(x)::NTuple{4,Int}
    check_rope_options(name, options, D)
    check_positions(name, options.offset, positions, len, B)
    cosines === nothing && sines === nothing && return nothing
    both = cosines !== nothing && sines !== nothing
    both || reject(:invalid_config, name, "cos", "cos and sin together", "one of them")
    check_eltype(name, "cos", cosines, eltype(x))
    check_rank(name, "cos", cosines, "(R/2, P)", 2)
    check_size(name, "cos", cosines, (rotary_dim(options, D) ÷ 2, size(cosines, 2)))
    check_exact(name, "sin", sines, eltype(x), size(cosines))
    alone = options.base === nothing && options.scaling === nothing
    alone || reject(:invalid_config, name, "cos", "no base and no scaling beside tables", "both")
    last = size(cosines, 2) - 1
    for p in rope_positions(options, positions, len, B)
        0 <= p <= last || reject(:invalid_config, name, "positions", "values from 0 to $last", p)
    end
    return nothing
end

# Against the size D of what is to be rotated.
function check_rope_options(name::String, @nospecialize(options), D::Int)
    options isa Rope || reject(:invalid_config, name, "rope", "a Rope", repr(options))
    options.base === nothing || check_positive(name, "base", options.base)
    check_flag(name, "interleaved", options.interleaved)
    R = options.rotary_dim
    if R === nothing
        good = D >= 2 && iseven(D)
        good || reject(:shape_mismatch, name, "x", "an even head size >= 2, or a rotary_dim", D)
        R = D
    end
    good = is_integer(R) && 2 <= R <= D && iseven(R)
    good || reject(:invalid_config, name, "rotary_dim", "an even integer from 2 to $D", repr(R))
    check_offset(name, "offset", options.offset)
    return options.scaling === nothing || check_scaling(name, options.scaling, options.base, Int(R))
end

function check_scaling(name::String, @nospecialize(scaling), @nospecialize(base), R::Int)
    scaling isa RopeScaling || reject(:invalid_config, name, "scaling", "a RopeScaling", repr(scaling))
    for field in fieldnames(typeof(scaling))
        value, argument = getfield(scaling, field), String(field)
        if field in (:short_factor, :long_factor)
            good = value isa Union{AbstractVector,Tuple} && length(value) == R ÷ 2
            good = good && all(x -> is_finite_number(x) && x > 0, value)
            good || reject(:invalid_config, name, argument, "$(R ÷ 2) finite numbers > 0", repr(value))
        elseif field == :truncate
            check_flag(name, argument, value)
        elseif field == :original_length
            check_whole(name, argument, value, 1)
        elseif field == :length
            value === nothing || check_whole(name, argument, value, 1)
        else
            optional = field == :attention_factor || (field == :factor && scaling isa LongRopeScaling)
            optional && value === nothing || check_positive(name, argument, value)
        end
    end
    # Where a formula divides by a difference or a logarithm, that is not 0.
    if scaling isa YarnScaling
        base != 1 || reject(:invalid_config, name, "base", "another one than 1 with yarn", base)
    elseif scaling isa Llama3Scaling
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        low < high || reject(:invalid_config, name, "high_freq_factor", "more than $low", high)
    elseif scaling isa LongRopeScaling
        derived = scaling.attention_factor === nothing && something(scaling.factor, 1) > 1
        good = !derived || scaling.original_length > 1
        good || reject(:invalid_config, name, "original_length", "more than 1", scaling.original_length)
    end
    return nothing
end

# Int64 (T, B), and then no offset.
function check_positions(name::String, offset, positions, len::Int, batch::Int)
    @nospecialize offset positions
    check_offset(name, "offset", offset)
    positions === nothing && return nothing
    offset === nothing || reject(:invalid_config, name, "offset", "none beside positions", repr(offset))
    return check_like(name, "positions", positions, Int64, (len, batch))
end

function check_sinusoidal(name::String, x, positions, offset, base, halves)
    @nospecialize
    check_float(name, "x", x)
    check_rank(name, "x", x, "(C, T, B)", 3)
    C, len, B = size(x)::NTuple{3,Int}
    iseven(C) || reject(:shape_mismatch, name, "x", "an even width", C)
    check_positive(name, "base", base)
    check_flag(name, "halves", halves)
    return check_positions(name, offset, positions, len, B)
end

# Scores (Tk, Tq, H, B) and the position of their first query.
function check_scores(name::String, scores, q_offset)
    @nospecialize
    check_float(name, "scores", scores)
    check_rank(name, "scores", scores, "(Tk, Tq, H, B)", 4)
    return check_offset(name, "q_offset", q_offset)
end

function check_buckets(name::String, scores, table, bidirectional, max_distance)
    @nospecialize
    check_flag(name, "bidirectional", bidirectional)
    check_eltype(name, "table", table, eltype(scores))
    check_rank(name, "table", table, "(H, buckets)", 2)
    H, rows = size(scores, 3), size(table, 2)
    size(table, 1) == H || reject(:shape_mismatch, name, "table", "$H heads as in scores", size(table, 1))
    good = bidirectional ? iseven(rows) && rows >= 4 : rows >= 2
    least = bidirectional ? "an even number of buckets >= 4" : "at least 2 buckets"
    good || reject(:shape_mismatch, name, "table", least, rows)
    n = bidirectional ? rows ÷ 2 : rows
    return check_whole(name, "max_distance", max_distance, n ÷ 2 + 1)
end
