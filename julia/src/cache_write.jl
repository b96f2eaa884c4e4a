# One write into a cache that is an array: an update at an index of each row, round the end if it is circular.
#
# Letters: B batch, L length of the cache, T of the update, n numbers a position.
#
# Source: the operator TensorScatter of ONNX, opset 24.

"""
    cache_write(cache, update, write_indices = nothing; circular = false)

A copy of `cache` `(n, L, ..., B)` with `update` `(n, T, ..., B)` in it, from position `write_indices[b]` of
row b on.

- `write_indices`: `Int64`, `(B,)`, counted from 0; `nothing` = 0
- `circular`: positions are taken modulo L, and T <= L; else the update must fit

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config, capacity_exceeded.
"""
function cache_write(cache, update, write_indices = nothing; circular = false)
    @nospecialize write_indices circular
    check_cache_write("cache_write", cache, update, write_indices, circular)
    starts = per_row(write_indices, 0, size(cache, ndims(cache)))::Vector{Int}  # (B,)
    output = copyto!(Array{eltype(cache)}(undef, size(cache)), cache)  # (n, L, ..., B)
    write_rows!(with_one_middle(output), with_one_middle(update), starts)
    return output
end

function write_rows!(output::AbstractArray{T,4}, update::AbstractArray{T,4}, starts::Vector{Int}) where {T}
    L = size(output, 2)
    for b in 1:size(update, 4), t in 0:size(update, 2)-1
        # 1. positions: from the row's own index on, round the end
        position = mod(mod(starts[b], L) + t, L)

        # 2. write: as it is, also a half
        output[:, position+1, :, b] = view(update, :, t + 1, :, b)
    end
end

# (n, T, ..., B) as (n, T, m, B).
with_one_middle(x) = reshape(x, size(x, 1), size(x, 2), prod(size(x)[3:end-1]), size(x, ndims(x)))
