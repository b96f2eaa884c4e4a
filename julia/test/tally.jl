# A test set that counts, so that the run can end with one plain line: N passed, N failed.

mutable struct Tally <: Test.AbstractTestSet
    description::String
    passed::Int
    failed::Int
end

Tally(description; options...) = Tally(description, 0, 0)

function Test.record(tally::Tally, result::Test.Pass)
    tally.passed += 1
    return result
end

function Test.record(tally::Tally, inner::Tally)
    tally.passed += inner.passed
    tally.failed += inner.failed
    return inner
end

# Fail, Error, and what is marked broken: none of it is a pass.
function Test.record(tally::Tally, result::Test.Result)
    tally.failed += 1
    println("\n", tally.description, ":")
    println(result)
    return result
end

function Test.finish(tally::Tally)
    if Test.get_testset_depth() > 0
        Test.record(Test.get_testset(), tally)
    end
    return tally
end
