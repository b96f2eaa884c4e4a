using RosettaAttention: Fields, JSONError, parse_json, write_json

@testset "json values" begin
    @test parse_json("null") === nothing
    @test parse_json(" true ") === true && parse_json("false") === false
    @test parse_json("-0") === Int64(0) && parse_json("9007199254740993") === 9007199254740993
    @test parse_json("9223372036854775807") === typemax(Int64)
    @test parse_json("9223372036854775808") == big(2)^63  # too large for Int64
    @test parse_json("1.0") === 1.0 && parse_json("-2.5e-3") === -0.0025 && parse_json("1E2") === 100.0
    @test parse_json("5e-324") === 5e-324 && parse_json("0.1") === 0.1
    @test parse_json("[]") == [] && parse_json("[1, [2.5, null], \"x\"]") == [1, [2.5, nothing], "x"]
    @test parse_json("{}") == Dict()
    @test parse_json("{\"a\": {\"b\": [1]}, \"c\" :2}") == Dict("a" => Dict("b" => [1]), "c" => 2)
    @test parse_json("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"") == "\"\\/\b\f\n\r\t"
    @test parse_json("\"\\u00e9 \\ud83d\\ude00 é 😀\"") == "é 😀 é 😀"
end

@testset "what is no JSON" begin
    bad = [
        "", " ", "nul", "tru e", "NaN", "Infinity", "-Infinity", "-", "+1", "01", "1.", ".5", "1e", "0x10",
        "1 2", "[1,]", "[1 2]", "[", "]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{1:2}", "'a'",
        "\"", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\ude00\"", "\"\\ud800\\u0041\"",
        "\"a\nb\"", "1\0", "{}\0", "\"\xff\"", "[" ^ 100_000, "{\"a\":" ^ 100_000,
    ]
    for text in bad
        @test_throws JSONError parse_json(text)
    end
end

@testset "json round trips" begin
    values = Any[
        nothing, true, 0, -7, typemin(Int64), 0.1, -0.0, 5e-324, floatmax(), 1e21, 1.0f0 / 3,
        "", "a\"\\\n\t\u0001é😀", Any[], Any[1, "x", nothing], Dict{String,Any}(),
        Dict{String,Any}("a" => Any[1, Dict{String,Any}("b" => 2)]),
    ]
    for value in values
        text = write_json(value)
        @test isequal(parse_json(text), value) && !occursin('\n', text)
    end
    @test write_json(Fields(["b" => 1, "a" => [0.5, 2.0]])) == "{\"b\":1,\"a\":[0.5,2.0]}"
    @test write_json(Int[]) == "[]" && write_json(String[]) == "[]" && write_json(Fields()) == "{}"
    for value in (NaN, Inf, -Inf)
        @test_throws JSONError write_json([value])
    end
end
