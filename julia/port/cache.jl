# The scripts of the op kv_cache: a list of steps on one cache. A failed step changes nothing, and the script
# goes on.

const STEPS = ["append", "attend", "truncate", "reset", "read"]

struct CacheScript
    inputs::Tensors
    steps::Vector{Any}
    dtype::DataType
    sizes::NTuple{4,Any}
    capacity::Any
end

function prepare_cache(config::Dict, inputs::Tensors, want)
    kind = something(optional(config, "kind"), "contiguous")
    kind == "contiguous" || throw(NotOffered("kind.$kind"))
    optional(config, "rope") === nothing || throw(NotOffered("rope"))
    steps = required(config, "steps")
    good = steps isa Vector && all(step -> step isa Dict && get(step, "do", nothing) isa String, steps)
    good || invalid_request("steps: expected a list of objects with `do`")
    for step in steps
        step["do"] in STEPS || throw(NotOffered("step.$(step["do"])"))
        something(optional(step, "cache"), "main") == "main" || throw(NotOffered("step.cache"))
    end
    head_dim = required(config, "head_dim")
    sizes = (
        required(config, "batch"),
        required(config, "num_kv_heads"),
        head_dim,
        something(optional(config, "value_dim"), head_dim),
    )
    script = CacheScript(inputs, steps, cache_dtype(steps, inputs), sizes, optional(config, "capacity"))
    for name in something(want, [])
        name in written_names(steps) || invalid_request("want: no step writes $name")
    end
    wanted(tensors) = want === nothing ? tensors : [pair for pair in tensors if pair[1] in want]
    return Prepared(() -> run_script(script), result -> wanted(result[2]), result -> ["steps" => result[1]])
end

# That of the first append's keys, else of the first float tensor by name.
function cache_dtype(steps::Vector, inputs::Tensors)
    for step in steps
        step["do"] == "append" || continue
        k = tensor_of(inputs, optional(step, "k"))
        k === nothing && break
        eltype(k) in values(FLOAT_TYPES) && return eltype(k)
        break
    end
    found = [eltype(inputs[name]) for name in sort!(collect(keys(inputs)))]
    filter!(in(values(FLOAT_TYPES)), found)
    return isempty(found) ? Float32 : first(found)
end

tensor_of(inputs::Tensors, name) = name isa String ? optional(inputs, name) : nothing

function written_names(steps::Vector)
    names = String[]
    for step in steps
        out, lse = get(step, "out", nothing), get(step, "lse", nothing)
        step["do"] == "read" && out isa String && append!(names, ["$out.k", "$out.v", "$out.lengths"])
        step["do"] == "attend" && out isa String && push!(names, out)
        step["do"] == "attend" && lse isa String && push!(names, lse)
    end
    return names
end

# The codes of all steps, and the tensors that the good ones wrote; of two with one name the later stays.
function run_script(script::CacheScript)
    cache = KVCache{script.dtype}(script.sizes...; capacity = script.capacity)
    codes, written = String[], Fields()
    for step in script.steps
        code = "ok"
        try
            for pair in run_step(cache, step, script.inputs)
                filter!(old -> old[1] != pair[1], written)
                push!(written, pair)
            end
        catch error
            error isa AttentionError || rethrow()
            code = String(error.code)
        end
        push!(codes, code)
    end
    return codes, written
end

function run_step(cache::KVCache, step::Dict, inputs::Tensors)
    kind = step["do"]
    kind == "append" && return run_append(cache, step, inputs)
    kind == "attend" && return run_attend(cache, step, inputs)
    kind == "read" && return run_read(cache, step)
    kind == "truncate" && truncate!(cache, optional(step, "lengths"))
    kind == "reset" && reset!(cache)
    return Fields()
end

function run_append(cache::KVCache, step::Dict, inputs::Tensors)
    k, v = named_tensor(inputs, required(step, "k")), named_tensor(inputs, required(step, "v"))
    append!(cache, k, v; lengths = named_tensor(inputs, optional(step, "lengths")))
    return Fields()
end

function run_attend(cache::KVCache, step::Dict, inputs::Tensors)
    q, out = named_tensor(inputs, required(step, "q")), out_name(step, "out")
    lse = optional(step, "lse") === nothing ? nothing : out_name(step, "lse")
    q_offset = plain_offset(step)
    q_offset = q_offset isa String ? named_tensor(inputs, q_offset) : q_offset
    mask = mask_of(step, named_tensor(inputs, optional(step, "mask")), nothing, q_offset)
    options = shared_options(step, mask, named_tensor(inputs, optional(step, "bias")))
    lse === nothing && return [pair(out, attend(cache, q; options...))]
    steps = attend_steps(cache, q; options...)
    return [pair(out, steps.output), pair(lse, steps.lse)]
end

function run_read(cache::KVCache, step::Dict)
    out = out_name(step, "out")
    k, v, held = read(cache)
    return [pair("$out.k", k), pair("$out.v", v), pair("$out.lengths", held)]
end

function out_name(step::Dict, field::String)
    name = required(step, field)
    name isa String || invalid_request("$field: expected the name of a tensor, got $(repr(name))")
    return name
end

# The tensor that a step names; a name that the file lacks is the step's fault.
named_tensor(::Tensors, ::Nothing) = nothing
function named_tensor(inputs::Tensors, name)
    name isa String || invalid_request("expected the name of a tensor, got $(repr(name))")
    return required(inputs, name)
end

const CACHE_FEATURES = ["contiguous", "grow", "append", "append_lengths", "attend", "attend_lse"]

push!(
    OPS,
    "kv_cache" => Op(prepare_cache, String[], [CACHE_FEATURES; "truncate"; "reset"; "read"; MASKED]),
)
