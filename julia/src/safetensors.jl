# safetensors files: eight bytes with the length of a header, the header in JSON, the data of all tensors.
#
# The file is row-major. Its bytes are taken as they are and the dimensions reversed: a tensor that the file
# calls (B, H, T, D) is an array (D, T, H, B). Values are read through the file, not through a view of it, so
# neither the alignment of the header nor that of a tensor matters. The file is little-endian, as is every
# machine Julia runs on.

struct FileError <: Exception
    message::String
end

Base.showerror(io::IO, e::FileError) = print(io, "safetensors: ", e.message)

"""
A tensor whose element type has no type here, such as F8_E5M2. It can be named, not used.
"""
struct Unreadable
    dtype::String
end

const ELTYPES = Dict{String,DataType}(
    "F64" => Float64, "F32" => Float32, "F16" => Float16, "BF16" => BFloat16,
    "I64" => Int64, "I32" => Int32, "I16" => Int16, "I8" => Int8,
    "U64" => UInt64, "U32" => UInt32, "U16" => UInt16, "U8" => UInt8, "BOOL" => Bool,
)
# All that the format knows.
const DTYPE_NAME = r"^(BOOL|C64|F4|F6_E[23]M[23]|F8_E[458]M[0-3](FNUZ)?|BF16|F(16|32|64)|[IU](8|16|32|64))$"
const DTYPES = Dict{DataType,String}(T => name for (name, T) in ELTYPES)

"""
    read_tensors(path) -> Dict{String,Any}

All tensors of a file: arrays with reversed dimensions, or `Unreadable`. Throws FileError or JSONError.
"""
read_tensors(path::AbstractString) = first(read_file(path))

# All tensors, and the metadata, text by text, as they are in the header.
read_file(path::AbstractString) = open(read_file, path)

function read_file(io::IO)::Tuple{Dict{String,Any},Any}
    bytes = filesize(io)
    bytes >= 8 || throw(FileError("expected at least 8 bytes, got $bytes"))
    header_bytes = read(io, UInt64)
    header_bytes <= bytes - 8 || throw(FileError("expected a header within the file, got $header_bytes"))
    header = parse_json(String(read(io, Int(header_bytes))))
    header isa Dict || throw(FileError("expected a header that is an object"))
    data = 8 + Int(header_bytes)
    tensors, parts = Dict{String,Any}(), Tuple{Int,Int}[]
    for (name, entry) in header
        name == "__metadata__" && continue
        dtype, dims, start, stop = described(name, entry)
        0 <= start <= stop <= bytes - data || throw(FileError("$name: data_offsets outside the file"))
        if haskey(ELTYPES, dtype)
            T = ELTYPES[dtype]
            needed = prod(Int128[dims...]) * sizeof(T)
            stop - start == needed || throw(FileError("$name: expected $needed bytes, got $(stop - start)"))
            seek(io, data + start)
            tensors[name] = reshape(read_flat(io, T, prod(dims)), dims...)
        else
            tensors[name] = Unreadable(dtype)
        end
        push!(parts, (start, stop))
    end
    check_no_holes(parts, bytes - data)
    return tensors, get(header, "__metadata__", nothing)
end

# The format has every byte of the data belong to one tensor: what is left over was cut off, or put in.
function check_no_holes(parts::Vector{Tuple{Int,Int}}, bytes::Int)
    ends = 0
    for (start, stop) in sort!(parts)
        start == ends || throw(FileError("expected a tensor from byte $ends of the data on, got $start"))
        ends = stop
    end
    ends == bytes || throw(FileError("expected $ends bytes of data, got $bytes"))
    return nothing
end

function described(name::String, entry)
    good = entry isa Dict && get(entry, "dtype", nothing) isa String
    shape = good ? get(entry, "shape", nothing) : nothing
    offsets = good ? get(entry, "data_offsets", nothing) : nothing
    good = shape isa Vector && all(n -> n isa Int64 && n >= 0, shape)
    good = good && offsets isa Vector && length(offsets) == 2 && all(n -> n isa Int64, offsets)
    good = good && occursin(DTYPE_NAME, entry["dtype"])
    good || throw(FileError("$name: expected dtype, shape and data_offsets"))
    return entry["dtype"], Int[n for n in reverse(shape)], offsets[1], offsets[2]
end

# A vector first, so that nothing but `reshape` is compiled for another rank.
read_flat(io::IO, ::Type{T}, n::Int) where {T} = read!(io, Vector{T}(undef, n))
read_flat(io::IO, ::Type{Bool}, n::Int) = Bool[byte != 0x00 for byte in read!(io, Vector{UInt8}(undef, n))]

"""
    write_tensors(path, tensors, metadata = nothing)

Write pairs `name => array`; dimensions are reversed in the file. The file appears whole or not at all.
`metadata`: pairs of texts, or none.
"""
function write_tensors(path::AbstractString, tensors::Fields, metadata = nothing)
    # Wide types first, so that every tensor is aligned in the file.
    tensors = sort(tensors; by = tensor -> -sizeof(eltype(tensor[2])), alg = MergeSort)
    header, stop = Fields(), 0
    metadata === nothing || push!(header, pair("__metadata__", metadata))
    for (name, x) in tensors
        start, stop = stop, stop + sizeof(eltype(x)) * length(x)
        shape, offsets = Int[reverse(size(x))...], [start, stop]
        entry = Fields(["dtype" => DTYPES[eltype(x)], "shape" => shape, "data_offsets" => offsets])
        push!(header, pair(name, entry))
    end
    text = write_json(header)
    text *= " "^mod(-sizeof(text), 8)
    partial = path * ".partial"
    try
        open(partial, "w") do io
            write(io, UInt64(sizeof(text)), text)
            for (_, x) in tensors
                write(io, x)
            end
        end
        Base.Filesystem.rename(partial, path)
    catch
        ispath(partial) && rm(partial)
        rethrow()
    end
    return nothing
end
