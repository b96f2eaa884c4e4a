# The checks of the sparse patterns, for Tq queries and Tk keys.

function check_pattern(name::String, @nospecialize(pattern), Tq::Int, Tk::Int)
    pattern isa Pattern || reject(:invalid_config, name, "pattern", "a Pattern", repr(pattern))
    for field in fieldnames(typeof(pattern))
        value, argument = getfield(pattern, field), String(field)
        if field == :tokens
            check_tokens(name, value)
        elseif field == :mask
            dims = (cld(Tk, pattern.block), cld(Tq, pattern.block))
            check_eltype(name, "block_mask", value, Bool)
            check_size(name, "block_mask", value, dims)
        elseif field == :seed
            check_whole(name, argument, value, 0, LARGEST_SEED)
        elseif field == :summary
            check_whole(name, argument, value, 0, Int(pattern.stride))
        else
            check_whole(name, argument, value, field in (:dilation, :stride, :block) ? 1 : 0)
        end
    end
    return nothing
end

function check_tokens(name::String, @nospecialize(tokens))
    list = tokens isa Union{AbstractVector,Tuple}
    list || reject(:invalid_config, name, "tokens", "a list of positions", repr(tokens))
    for token in tokens
        check_whole(name, "tokens", token, 0)
    end
    return nothing
end
