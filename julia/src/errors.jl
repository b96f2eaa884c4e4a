"""
    AttentionError(code, message)

The one exception of this package. `code` is the stable name that every language shares for the same bad call:

- `:shape_mismatch`: sizes or ranks that do not fit together
- `:dtype_mismatch`: an array of the wrong element type
- `:invalid_config`: a scalar option outside its range, or two options that exclude each other
- `:capacity_exceeded`: a cache without room for what it was given
- `:invalid_request`: a file that cannot be read or written, or is damaged or foreign
- `:unsupported`: a legal request that this implementation does not offer

`message` names the function, the argument, what was expected and what came. A call that throws has changed
nothing.
"""
struct AttentionError <: Exception
    code::Symbol
    message::String
end

Base.showerror(io::IO, e::AttentionError) = print(io, "AttentionError (", e.code, "): ", e.message)

# Not inlined and not specialised: an error's text costs nothing until it is needed.
@noinline function reject(code::Symbol, name::String, argument::String, expected, got)
    @nospecialize
    throw(AttentionError(code, string(name, ": ", argument, ": expected ", expected, ", got ", got)))
end
