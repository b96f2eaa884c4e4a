# The scripts of the op kv_cache: a list of steps on named caches, of which there is one at first, "main".
# A failed step changes nothing, and the script goes on.

"""
A script made ready: what to do, and with what.
"""
struct CacheScript
    config::Dict{String,Any}
    inputs::Tensors
    kind::String
    steps::Vector{Any}
    dtype::DataType  # while no step has said another
    folder::String  # of relative paths
end

"""
What a script works on: the caches by name, which are empty, and may be of any type, until one of them has a
type.
"""
mutable struct Run
    script::CacheScript
    caches::Dict{String,Cache}
    typed::Bool
end

function prepare_cache(config::Dict, inputs::Tensors, want, folder::String)
    kind = something(optional(config, "kind"), "contiguous")
    haskey(STEPS, kind) || throw(NotOffered("kind.$kind"))
    steps = required(config, "steps")
    good = steps isa Vector && all(step -> step isa Dict && get(step, "do", nothing) isa String, steps)
    good || invalid_request("steps: expected a list of objects with `do`")
    for step in steps
        step["do"] in STEPS[kind] || throw(NotOffered("step.$(step["do"])"))
        step["do"] == "evict" && check_known(optional(step, "policy"))
    end
    for name in something(want, [])
        any(step -> writes(step, name), steps) || invalid_request("want: no step writes $name")
    end
    script = CacheScript(config, inputs, kind, steps, cache_dtype(inputs), folder)
    return Prepared(
        () -> run_script(script),
        result -> wanted(result[2], want),
        result -> ["steps" => result[1]],
    )
end

function writes(step::Dict, name::String)
    out = get(step, "out", nothing)
    step["do"] in ("read", "stats") && return out isa String && startswith(name, out * ".")
    return step["do"] in ("attend", "append_attend") && name in (out, get(step, "lse", nothing))
end

cache_name(step::Dict) = something(optional(step, "cache"), "main")

function wanted(tensors::Fields, want)
    want === nothing && return tensors
    return [pair for pair in tensors if pair[1] in want]
end

# That of the first float tensor by name.
function cache_dtype(inputs::Tensors)
    found = [eltype(inputs[name]) for name in sort!(collect(keys(inputs)))]
    filter!(in(values(FLOAT_TYPES)), found)
    return isempty(found) ? Float32 : first(found)
end

# The type that a step brings along.
function step_dtype(step::Dict, script::CacheScript)
    step["do"] == "load" && return file_dtype(step, script.folder)
    policy = step["do"] == "evict" ? optional(step, "policy") : nothing
    of_policy = policy isa Dict ? optional(policy, "q") : nothing
    for name in (optional(step, "k"), optional(step, "latent"), optional(step, "q"), of_policy)
        T = eltype_of(script.inputs, name)
        T === nothing || return T
    end
    return nothing
end

function eltype_of(inputs::Tensors, name)
    x = name isa String ? optional(inputs, name) : nothing
    return x isa AbstractArray && eltype(x) in values(FLOAT_TYPES) ? eltype(x) : nothing
end

function file_dtype(step::Dict, folder::String)
    metadata = try
        last(read_file(file_path(step, folder)))
    catch
        return nothing  # the step itself will say so
    end
    return metadata isa Dict ? get(FLOAT_TYPES, get(metadata, "dtype", nothing), nothing) : nothing
end

# The codes of all steps, and the tensors that the good ones wrote; of two with one name the later stays.
function run_script(script::CacheScript)
    run = Run(script, Dict{String,Cache}("main" => cache_of(script.dtype, script.kind, script.config)), false)
    codes, written = String[], Fields()
    for step in script.steps
        code = "ok"
        try
            set_type!(run, step)
            for pair in run_step(run, step)
                filter!(old -> old[1] != pair[1], written)
                push!(written, pair)
            end
            run.typed |= step["do"] in ("append", "append_attend", "load")
        catch error
            error isa AttentionError || rethrow()
            code = String(error.code)
        end
        push!(codes, code)
    end
    return codes, written
end

# Before anything was appended or loaded, caches of the type that this step is about.
function set_type!(run::Run, step::Dict)
    run.typed && return nothing
    T = step_dtype(step, run.script)
    T = T === nothing ? run.script.dtype : T
    all(cache -> eltype(cache) === T, values(run.caches)) && return nothing
    first_one = cache_of(T, run.script.kind, run.script.config)
    run.caches = Dict{String,Cache}(name => fork(first_one) for name in keys(run.caches))
    return nothing
end

function run_step(run::Run, step::Dict)
    name, kind, inputs = cache_name(step), step["do"], run.script.inputs
    haskey(run.caches, name) || invalid_config("cache: expected a name of a cache, got $(repr(name))")
    cache = run.caches[name]
    kind == "append" && return run_append(cache, step, inputs)
    kind == "attend" && return run_attend(cache, step, inputs)
    kind == "append_attend" && return run_append_attend(cache, step, inputs)
    kind == "read" && return run_read(cache, step)
    kind == "stats" && return run_stats(cache, step)
    kind == "truncate" && truncate!(cache, optional(step, "lengths"))
    kind == "reset" && reset!(cache)
    kind == "reorder" && reorder!(cache, list_field(step, "index"))
    kind == "evict" && run_evict(cache, step, inputs)
    kind == "shift" && shift!(cache, required(step, "by"), required(step, "from"))
    kind == "save" && save(cache, file_path(step, run.script.folder))
    kind == "load" && load!(cache, file_path(step, run.script.folder))
    kind == "fork" && run_fork(run, cache, step)
    kind == "drop" && delete!(run.caches, name)
    kind == "drop" && reset!(cache)  # its pages are for others
    return Fields()
end

function run_append(cache::Cache, step::Dict, inputs::Tensors)
    append!(cache, appended_tensors(cache, step, inputs)...; append_options(step, inputs)...)
    return Fields()
end

appended_tensors(cache::Cache, step::Dict, inputs::Tensors) =
    (named_tensor(inputs, required(step, name)) for name in appended(cache))

# The keywords of a call as one type whatever their values, as those of an attend are.
const AppendOptions = NamedTuple{(:lengths, :padding, :tokens),NTuple{3,Any}}

function append_options(step::Dict, inputs::Tensors)
    lengths, tokens = (named_tensor(inputs, optional(step, name)) for name in ("lengths", "tokens"))
    return AppendOptions((lengths, either(step, "padding", "right"), tokens))
end

function run_attend(cache::Cache, step::Dict, inputs::Tensors)
    q, options = named_tensor(inputs, required(step, "q")), attend_options(step, inputs)
    out, lse = attend_names(step)
    lse === nothing && return [pair(out, attend(cache, q; options...))]
    steps = attend_steps(cache, q; options...)
    return [pair(out, steps.output), pair(lse, steps.lse)]
end

function run_append_attend(cache::Cache, step::Dict, inputs::Tensors)
    q, new = named_tensor(inputs, required(step, "q")), appended_tensors(cache, step, inputs)
    options = merge(append_options(step, inputs), attend_options(step, inputs))
    out, lse = attend_names(step)
    steps = append_attend!(cache, q, new...; options...)
    lse === nothing && return [pair(out, steps.output)]
    return [pair(out, steps.output), pair(lse, steps.lse)]
end

function attend_options(step::Dict, inputs::Tensors)
    q_offset = plain_offset(step)
    q_offset = q_offset isa String ? named_tensor(inputs, q_offset) : q_offset
    mask = mask_of(step, named_tensor(inputs, optional(step, "mask")), nothing, q_offset)
    return shared_options(step, mask, named_tensor(inputs, optional(step, "bias")))
end

attend_names(step::Dict) =
    (name_field(step, "out"), optional(step, "lse") === nothing ? nothing : name_field(step, "lse"))

function run_read(cache::Cache, step::Dict)
    out, held = name_field(step, "out"), read(cache)
    fields = Fields([pair("$out.$name", held[name]) for name in keys(held) if name != :positions])
    flag(step, "positions") && push!(fields, pair("$out.positions", held.positions))
    flag(step, "tracked") && push!(fields, pair("$out.tracked", tracked(cache)))
    if flag(step, "codes")
        good = cache isa Union{QuantisedCache,KiviCache}
        good || invalid_config("codes: expected a quantised cache, got $(typeof(cache))")
        stored = read_codes(cache)
        append!(fields, [pair("$out.$name", stored[name]) for name in keys(stored)])
    end
    return fields
end

function run_evict(cache::Cache, step::Dict, inputs::Tensors)
    policy, positions = optional(step, "policy"), optional(step, "positions")
    policy === nothing && return evict!(cache, list_field(step, "positions"))
    positions === nothing || invalid_config("evict: expected positions or a policy, got both")
    return evict!(cache, policy_of(policy, inputs))
end

function run_stats(cache::Cache, step::Dict)
    out, counts = name_field(step, "out"), stats(cache)
    in_array(n::Int) = Int64[n]
    in_array(list::Array) = Array{Int64}(list)
    return Fields([pair("$out.$name", in_array(counts[name])) for name in keys(counts)])
end

function run_fork(run::Run, cache::Cache, step::Dict)
    into = name_field(step, "into")
    haskey(run.caches, into) && invalid_config("into: expected a new name, got $into")
    run.caches[into] = fork(cache)
    return nothing
end

file_path(step::Dict, folder::String) = joinpath(folder, name_field(step, "file"))

function flag(step::Dict, field::String)
    value = either(step, field, false)
    value isa Bool || invalid_config("$field: expected true or false, got $(repr(value))")
    return value
end

function name_field(step::Dict, field::String)
    name = required(step, field)
    name isa String || invalid_request("$field: expected a name, got $(repr(name))")
    return name
end

# What the entries are is the library's to check.
function list_field(step::Dict, field::String)
    list = required(step, field)
    list isa Vector || invalid_request("$field: expected a list, got $(repr(list))")
    return list
end

# The tensor that a step names; a name that the file lacks is the step's fault.
named_tensor(::Tensors, ::Nothing) = nothing
function named_tensor(inputs::Tensors, name)
    name isa String || invalid_request("expected the name of a tensor, got $(repr(name))")
    return required(inputs, name)
end

const CACHE_FEATURES = [
    "contiguous", "per_head", "rotating", "paged", "quantised", "latent", "cross", "grow", "rope", "rope_at",
    "f16", "bf16", "int8", "int4", "fp8_e4m3", "zero_point", "group", "key_groups", "track", "tracked",
    "evict_window", "evict_heavy_hitters", "evict_snapkv", "evict_key_norm", "budget_list",
    "append", "append_lengths", "append_padding", "tokens", "attend", "attend_lse", "append_attend",
    "truncate", "reset", "read", "codes", "positions", "reorder", "fork", "drop", "evict", "shift",
    "save", "load", "stats",
]

push!(OPS, "kv_cache" => Op(prepare_cache, String[], [CACHE_FEATURES; MASKED]))
