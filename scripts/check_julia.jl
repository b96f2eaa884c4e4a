# Checks the form of Julia sources: `julia scripts/check_julia.jl FOLDER...`. The standard library has no
# formatter, so this looks at what can be decided without taste: does every file parse, are there tabs,
# blanks at the end of a line or lines over 110 characters, does the file end in one newline.

const MAX_LENGTH = 110

"All of a file as one expression, on Julia 1.5 (no `Meta.parseall`) and later."
function parse_all(text, name)
    isdefined(Meta, :parseall) && return Meta.parseall(text; filename = name)
    return Base.parse_input_line(text; filename = name)
end

"The first syntax error inside an expression, or nothing."
function syntax_error(node)
    node isa Expr || return nothing
    node.head in (:error, :incomplete) && return join(string.(node.args), " ")
    for child in node.args
        found = syntax_error(child)
        found === nothing || return found
    end
    return nothing
end

"Everything that is wrong with one file, as lines that name the place."
function problems(path)
    text = read(path, String)
    found = String[]
    message = try
        syntax_error(parse_all(text, path))
    catch error
        sprint(showerror, error)
    end
    message === nothing || push!(found, "$path: does not parse: $message")
    endswith(text, "\n") && !endswith(text, "\n\n") || push!(found, "$path: must end in exactly one newline")
    for (number, line) in enumerate(split(text, '\n'))
        occursin('\t', line) && push!(found, "$path:$number: tab")
        occursin(r"\s$", line) && push!(found, "$path:$number: trailing blank")
        length(line) > MAX_LENGTH && push!(found, "$path:$number: over $MAX_LENGTH characters")
    end
    return found
end

"The Julia files below the folders."
function julia_files(folders)
    files = String[]
    for folder in folders, (parent, _, names) in walkdir(folder), name in names
        endswith(name, ".jl") && push!(files, joinpath(parent, name))
    end
    return sort(files)
end

files = julia_files(ARGS)
found = isempty(files) ? ["no Julia file below $(join(ARGS, ", "))"] : vcat(problems.(files)...)
foreach(println, found)
println("$(length(files)) files, $(length(found)) problems")
exit(isempty(found) ? 0 : 1)
