# The decode experiment: what it counts is what docs/decode.md says, and its three ways make the same tokens.

include("../experiments/decode.jl")

@testset "counts follow their formulas" begin
    T, C = 50, 24
    counted(way) = Decode.cost(way, T, C, 4)
    @test counted("everything").multiply_adds == sum(4t * C^2 + 2t^2 * C for t in 1:T)
    @test counted("keys and values").multiply_adds == sum(2t * C^2 + 2C^2 + 2t * C for t in 1:T)
    @test counted("cache").multiply_adds == sum(4C^2 + 2t * C for t in 1:T)
    @test Decode.cost("cache", 64, 128, 8) == (multiply_adds = 4726784, moved = 19367936)  # of docs/decode.md
end

@testset "three ways make the same tokens" begin
    rng = MersenneTwister(120)
    layer, token = Decode.random_layer(rng, 12, 3), randn(rng, Float32, 12, 1, 1)
    runs = [Decode.generate(way, layer, token, [5, 20]) for way in Decode.WAYS]
    @test runs[1].held == Dict(5 => 0, 20 => 0)
    @test runs[3].held == Dict(n => 2 * 4 * 12 * n for n in (5, 20))
    for (way, run) in zip(Decode.WAYS, runs)
        @test same(run.text[:, 1:1, :], token) && run.seconds[5] <= run.seconds[20]
        @test Decode.check_outputs(way, run, layer) === nothing
        _, bound = Decode.last_output(run.text[:, :, 1], layer)
        @test all(x -> 0 < x < 1e-2, bound)
        # an output that is off by more than its bound, or is no number
        for wrong in (2 * maximum(bound), NaN)
            outputs = Dict(5 => run.outputs[5], 20 => run.outputs[20] .+ Float32(wrong))
            spoilt = Decode.Run(run.text, outputs, run.seconds, run.held)
            @test_throws Decode.WrongOutput Decode.check_outputs(way, spoilt, layer)
        end
    end
end

@testset "its command line" begin
    asked(line) = Decode.asked_of(String.(split(line)))
    @test asked("").lengths == [64, 128, 256, 512, 1024] && asked("--quick").lengths == [16, 32, 64, 128]
    @test asked("--n 8,4,8 --quick --json").lengths == [4, 8] && asked("--json").json
    for bad in ("--n", "--n 0", "--n 1.5", "--width 4,8", "--heads 3", "--repeats 0", "--jump", "5")
        @test_throws ArgumentError asked(bad)
    end
    output = IOBuffer()
    Decode.main(String.(split("--n 2,4 --width 8 --heads 2 --json")), output)
    lines = parse_json.(String.(split(strip(String(take!(output))), "\n")))
    asked_for = [(way, n) for way in Decode.WAYS for n in (2, 4)]
    @test [(line["way"], line["tokens"]) for line in lines] == asked_for
    @test all(line -> line["port"] == "julia" && line["seconds"] > 0, lines)
    @test [line["held"] for line in lines] == [0, 0, 0, 0, 2 * 4 * 8 * 2, 2 * 4 * 8 * 4]
    Decode.main(String.(split("--n 2,4 --width 8 --heads 2")), output)
    table = String(take!(output))
    @test occursin("keys and values", table) && occursin("T^", table) && occursin("holds 0.00 MiB", table)
end
