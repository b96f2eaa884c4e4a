# A small JSON reader and writer: RFC 8259, nothing more. Numbers without fraction or exponent are Int64, or
# BigInt where they do not fit, all others Float64; objects are Dict{String,Any}, arrays Vector{Any}, null is
# `nothing`. NaN and Infinity are no JSON.

# An object that keeps the order of its fields.
const Fields = Vector{Pair{String,Any}}
pair(name, value) = Pair{String,Any}(name, value)

struct JSONError <: Exception
    message::String
end

Base.showerror(io::IO, e::JSONError) = print(io, "no JSON: ", e.message)

mutable struct JSONReader
    bytes::Base.CodeUnits{UInt8,String}
    at::Int  # index of the next byte
    depth::Int
end

const DEEPEST = 256  # nesting beyond this is refused, before the stack ends

"""
    parse_json(text) -> value

The one JSON value in `text`. Throws JSONError.
"""
function parse_json(text::String)
    isvalid(text) || throw(JSONError("not UTF-8"))
    reader = JSONReader(codeunits(text), 1, 0)
    value = read_value(reader)
    skip_blanks(reader)
    reader.at > length(reader.bytes) || fail(reader, "expected the end")
    return value
end

fail(reader::JSONReader, message::String) = throw(JSONError("$message at byte $(reader.at)"))

# The next byte, 0 at the end: a NUL is legal nowhere in JSON.
peek_byte(reader::JSONReader) = reader.at <= length(reader.bytes) ? reader.bytes[reader.at] : 0x00

function skip_blanks(reader::JSONReader)
    while peek_byte(reader) in (0x20, 0x09, 0x0a, 0x0d)
        reader.at += 1
    end
end

function expect(reader::JSONReader, char::Char)
    peek_byte(reader) == UInt8(char) || fail(reader, "expected '$char'")
    reader.at += 1
    return nothing
end

function read_value(reader::JSONReader)::Any
    skip_blanks(reader)
    byte = peek_byte(reader)
    byte == UInt8('{') && return nested(read_object, reader)
    byte == UInt8('[') && return nested(read_array, reader)
    byte == UInt8('"') && return read_string(reader)
    byte == UInt8('t') && return read_word(reader, "true", true)
    byte == UInt8('f') && return read_word(reader, "false", false)
    byte == UInt8('n') && return read_word(reader, "null", nothing)
    return read_number(reader)
end

function nested(read_inside::Function, reader::JSONReader)
    reader.depth += 1
    reader.depth <= DEEPEST || fail(reader, "nested too deep")
    reader.at += 1
    value = read_inside(reader)
    reader.depth -= 1
    return value
end

function read_object(reader::JSONReader)
    object = Dict{String,Any}()
    ends(reader, '}') && return object
    while true
        skip_blanks(reader)
        key = read_string(reader)
        skip_blanks(reader)
        expect(reader, ':')
        object[key] = read_value(reader)
        ends(reader, '}') && return object
        expect(reader, ',')
    end
end

function read_array(reader::JSONReader)
    array = Any[]
    ends(reader, ']') && return array
    while true
        push!(array, read_value(reader))
        ends(reader, ']') && return array
        expect(reader, ',')
    end
end

# Whether the next byte but blanks closes the value; it is then consumed.
function ends(reader::JSONReader, close::Char)
    skip_blanks(reader)
    closed = peek_byte(reader) == UInt8(close)
    reader.at += closed
    return closed
end

function read_word(reader::JSONReader, word::String, value)
    for char in word
        expect(reader, char)
    end
    return value
end

const NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?"

function read_number(reader::JSONReader)
    start = reader.at
    while is_number_byte(peek_byte(reader))
        reader.at += 1
    end
    text = String(reader.bytes[start:reader.at-1])
    found = match(NUMBER, text)
    if found === nothing || found.match != text
        reader.at = start
        fail(reader, "expected a value")
    end
    if found[2] === nothing && found[3] === nothing
        integer = tryparse(Int64, text)
        return integer === nothing ? parse(BigInt, text) : integer
    end
    return parse(Float64, text)
end

is_number_byte(byte::UInt8) =
    UInt8('0') <= byte <= UInt8('9') || byte in (UInt8('-'), UInt8('+'), UInt8('.'), UInt8('e'), UInt8('E'))

function read_string(reader::JSONReader)
    expect(reader, '"')
    out = IOBuffer()
    while true
        byte = peek_byte(reader)
        byte < 0x20 && fail(reader, "unfinished string")
        reader.at += 1
        byte == UInt8('"') && return String(take!(out))
        if byte == UInt8('\\')
            read_escape(reader, out)
        else
            write(out, byte)
        end
    end
end

const ESCAPES = Dict(
    '"' => '"', '\\' => '\\', '/' => '/', 'b' => '\b', 'f' => '\f', 'n' => '\n', 'r' => '\r', 't' => '\t'
)

function read_escape(reader::JSONReader, out::IO)
    char = Char(peek_byte(reader))
    reader.at += 1
    if haskey(ESCAPES, char)
        print(out, ESCAPES[char])
        return nothing
    end
    char == 'u' || fail(reader, "unknown escape")
    unit = read_hex(reader)
    if 0xd800 <= unit < 0xdc00 && peek_byte(reader) == UInt8('\\')  # first half of a pair of UTF-16
        expect(reader, '\\')
        expect(reader, 'u')
        low = read_hex(reader)
        0xdc00 <= low < 0xe000 || fail(reader, "half a surrogate pair")
        unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)
    end
    0xd800 <= unit < 0xe000 && fail(reader, "half a surrogate pair")
    print(out, Char(unit))
    return nothing
end

function read_hex(reader::JSONReader)
    last = reader.at + 3
    last <= length(reader.bytes) || fail(reader, "unfinished escape")
    digits = String(reader.bytes[reader.at:last])
    occursin(r"^[0-9a-fA-F]{4}$", digits) || fail(reader, "expected four hexadecimal digits")
    reader.at = last + 1
    return parse(UInt32, digits; base = 16)
end

"""
    write_json(value) -> String

`value` as JSON on one line. An object is a `Dict{String,Any}` or `Fields`; NaN and Inf are refused.
"""
write_json(value) = sprint(print_json, value)

print_json(io::IO, ::Nothing) = print(io, "null")
print_json(io::IO, value::Bool) = print(io, value)
print_json(io::IO, value::Integer) = print(io, value)
print_json(io::IO, value::AbstractString) = print_string(io, value)

function print_json(io::IO, value::AbstractFloat)
    isfinite(value) || throw(JSONError("$value cannot be written"))
    print(io, Float64(value))
end

print_json(io::IO, fields::Fields) = print_object(io, fields)
print_json(io::IO, object::Dict{String,Any}) = print_object(io, object)

function print_json(io::IO, values::AbstractVector)
    print(io, '[')
    for (i, value) in enumerate(values)
        i > 1 && print(io, ',')
        print_json(io, value)
    end
    print(io, ']')
end

function print_object(io::IO, object)
    print(io, '{')
    for (i, (key, value)) in enumerate(object)
        i > 1 && print(io, ',')
        print_string(io, key)
        print(io, ':')
        print_json(io, value)
    end
    print(io, '}')
end

function print_string(io::IO, text::AbstractString)
    print(io, '"')
    for char in text
        if char == '"' || char == '\\'
            print(io, '\\', char)
        elseif char == '\n'
            print(io, "\\n")
        elseif !isvalid(char)
            print(io, '\ufffd')
        elseif char < ' '
            print(io, "\\u", string(UInt32(char); base = 16, pad = 4))
        else
            print(io, char)
        end
    end
    print(io, '"')
end
