# What the layers share: projections, and the way from channels to heads and back.

"""
What has weights. A layer of a half type is widened as a whole, so that nothing in it is rounded in between.
"""
abstract type Layer end

widened(layer::L) where {L<:Layer} = L(map(name -> widened(getfield(layer, name)), fieldnames(L))...)
widened(layers::Vector{Any}) = Any[widened(layer) for layer in layers]

# A list of layers as a layer holds it: any value fits, so that a wrong one is named by the call.
layer_list(@nospecialize(layers)) = layers isa Union{AbstractVector,Tuple} ? collect(Any, layers) : layers

# y = w' x + b: (in, T, B) to (out, T, B).
function linear(w, x::AbstractArray{T,3}, b)::Array{T,3} where {T}
    width, len, batch = size(x)
    y = w' * reshape(x, width, len * batch)
    return reshape(add_bias(y, b), size(w, 2), len, batch)
end

# (n·H, T, B) to (n, T, H, B).
function split_heads(x::Array{T,3}, num_heads)::Array{T,4} where {T}
    width, len, batch = size(x)
    return permutedims(reshape(x, width ÷ Int(num_heads), Int(num_heads), len, batch), (1, 3, 2, 4))
end

# (n, T, H, B) to (n·H, T, B).
function merge_heads(x::Array{T,4})::Array{T,3} where {T}
    n, len, num_heads, batch = size(x)
    return reshape(permutedims(x, (1, 3, 2, 4)), n * num_heads, len, batch)
end
