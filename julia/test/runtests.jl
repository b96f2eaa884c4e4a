# Runs all tests and ends with one plain line, "N passed, N failed"; the exit status says the same. Started as
#
#     julia --project=julia --startup-file=no julia/test/runtests.jl

using LinearAlgebra: I
using Random: MersenneTwister
using RosettaAttention
using Test

include("tally.jl")
include("helpers.jl")
include("../port/port.jl")

const FILES = [
    "test_softmax.jl",
    "test_masks.jl",
    "test_sdpa.jl",
    "test_flash.jl",
    "test_simd.jl",
    "test_scoring.jl",
    "test_positions.jl",
    "test_linear.jl",
    "test_sparse.jl",
    "test_mha.jl",
    "test_mla.jl",
    "test_blocks.jl",
    "test_kv_cache.jl",
    "test_caches.jl",
    "test_eviction.jl",
    "test_rope_at.jl",
    "test_track.jl",
    "test_per_head_cache.jl",
    "test_kivi_cache.jl",
    "test_quantise.jl",
    "test_cache_file.jl",
    "test_cast.jl",
    "test_dropout.jl",
    "test_checks.jl",
    "test_json.jl",
    "test_safetensors.jl",
    "test_port.jl",
    "test_port_ops.jl",
    "test_port_caches.jl",
    "test_decode.jl",
    "test_fixtures.jl",
]

total = @testset Tally "all" begin
    for file in FILES
        started = time()
        part = @testset Tally "$file" begin
            include(file)
        end
        counts = (lpad(part.passed, 6), " passed ", lpad(part.failed, 4), " failed ")
        println(rpad(file, 24), counts..., lpad(round(time() - started; digits = 1), 6), " s")
        flush(stdout)
    end
end

println(total.passed, " passed, ", total.failed, " failed")
exit(total.failed == 0 && total.passed > 0 ? 0 : 1)
