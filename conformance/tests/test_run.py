"""What a port is asked, what it is not, and what becomes of the answers."""

import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
from fakes import fake_port

from conformance.case import Case, Files, Suite
from conformance.fixtures import LoadedSuite
from conformance.outcome import Result
from conformance.ports import Port
from conformance.protocol import check_protocol
from conformance.questions import NO_VARIANT, Narrowing, list_questions
from conformance.run import run_port
from conformance.session import OpClaim, Session, StartAnswer, Timeouts
from conformance.tensors import write_tensors

QUICK = Timeouts(start=20, run=2, stop=2)
X = np.array([[0.0, 1.0], [2.0, 2.0]])
WEIGHTS = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
LSE = np.log(np.exp(X).sum(axis=1))

# A port that is right: it has the numbers by heart.
RIGHT = f"""
import numpy as np
from safetensors.numpy import load_file, save_file

KNOWN = {{"output": np.array({WEIGHTS.tolist()}), "lse": np.array({LSE.tolist()})}}

def answer(request):
    x = load_file(request["inputs"])["x"]
    save_file({{name: KNOWN[name].astype(x.dtype) for name in request["want"]}}, request["outputs"])
    return ok(request)
"""
ANSWER_ALL = "for request in requests(): say(answer(request))\n"


def make_suite(folder: Path, *cases: Case) -> LoadedSuite:
    """Cases of softmax over X, with their files."""
    for dtype, kind in (("f32", np.float32), ("f64", np.float64)):
        write_tensors(folder / f"x.{dtype}.in.safetensors", {"x": X.astype(kind)})
    write_tensors(folder / "x.out.safetensors", {"output": WEIGHTS, "lse": LSE})
    return LoadedSuite(Suite("mine", 1, list(cases)), folder)


def case(id_: str, *, dtypes: tuple[str, ...] = ("f32",), want: tuple[str, ...] = ("output", "lse")) -> Case:
    files = {dtype: Files(f"x.{dtype}.in.safetensors", "x.out.safetensors") for dtype in dtypes}
    return Case(id_, "softmax", {}, files, want=list(want), features=["lse"] if "lse" in want else [])


def run(port: Port, *suites: LoadedSuite, **options: object) -> list[Result]:
    with Session(port, timeouts=QUICK, max_restarts=3) as session:
        return run_port(session, suites, **options)  # type: ignore[arg-type]


def outcomes(results: list[Result]) -> list[str]:
    return [result.judgement.outcome for result in results]


def test_a_right_answer_passes_within_its_bound(tmp_path: Path) -> None:
    (result,) = run(fake_port(tmp_path, RIGHT + ANSWER_ALL), make_suite(tmp_path, case("a")))
    assert result.judgement.outcome == "pass"
    assert 0 < result.judgement.share < 1
    assert (result.port, result.suite, result.dtype, result.variant) == ("fake", "mine", "f32", "naive")


def test_what_is_not_claimed_is_not_asked(tmp_path: Path) -> None:
    body = """
    CLAIMS["softmax"]["features"].clear()
    for request in requests():
        if request["want"] != ["output"]:
            os._exit(1)
        say(answer(request))
    """
    sdpa = Case("c", "sdpa", {}, case("c").files)
    suite = make_suite(tmp_path, case("a", want=("output",)), case("b"), sdpa, case("d", dtypes=("f64",)))
    results = run(fake_port(tmp_path, RIGHT + dedent(body)), suite)
    assert outcomes(results) == ["pass", "unsupported", "unsupported", "unsupported"]
    assert [r.judgement.message for r in results[1:]] == [
        "lse of softmax is not claimed",
        "op sdpa is not claimed",
        "dtype f64 of softmax is not claimed",
    ]
    assert results[2].variant == NO_VARIANT


def test_questions_come_in_a_fixed_order_and_can_be_narrowed(tmp_path: Path) -> None:
    claims = StartAnswer(1, "x", {"softmax": OpClaim(["naive", "simd"], ["f32", "f64"], ["lse"])})
    suite = make_suite(tmp_path, case("a/1", dtypes=("f32", "f64")), case("b/1"))

    def names(narrowing: Narrowing) -> list[str]:
        return [
            f"{q.case.id} {q.dtype} {q.variant} {q.first}" for q in list_questions(claims, [suite], narrowing)
        ]

    assert names(Narrowing()) == [
        "a/1 f32 naive True",
        "a/1 f32 simd False",
        "a/1 f64 naive True",
        "a/1 f64 simd False",
        "b/1 f32 naive True",
        "b/1 f32 simd False",
    ]
    assert names(Narrowing(variants=["simd"], dtypes=["f64"])) == ["a/1 f64 simd False"]
    assert names(Narrowing(match="b/*", variants=["naive"])) == ["b/1 f32 naive True"]


def test_a_later_variant_may_answer_unsupported_and_the_first_may_not(tmp_path: Path) -> None:
    body = """
    CLAIMS["softmax"]["variants"].append("fast")
    for request in requests():
        say({**ok(request), "status": "unsupported", "feature": "rows"})
    """
    results = run(fake_port(tmp_path, body), make_suite(tmp_path, case("a")))
    assert outcomes(results) == ["fail", "unsupported"]
    assert "claimed all of it, then answered unsupported: rows" in results[0].judgement.message
    assert [r.first for r in results] == [True, False]


def test_a_later_variant_is_judged_by_the_outputs_that_it_has(tmp_path: Path) -> None:
    body = """
    CLAIMS["softmax"]["variants"].append("fast")
    asked = 0
    for request in requests():
        if request["variant"] == "fast" and "lse" in request["want"]:
            asked += 1
            if asked > 1:
                os._exit(1)  # it has said so once
            say({**ok(request), "status": "unsupported", "feature": "want.lse"})
        else:
            say(answer(request))
    """
    suite = make_suite(tmp_path, case("a"), case("b"))
    results = run(fake_port(tmp_path, RIGHT + dedent(body)), suite)
    assert [(r.case, r.variant, r.judgement.outcome) for r in results] == [
        ("a", "naive", "pass"),
        ("a", "fast", "pass"),
        ("b", "naive", "pass"),
        ("b", "fast", "pass"),
    ]
    assert results[3].judgement.message == "judged without lse, which this variant does not write"


def test_a_file_beside_an_error_is_a_failure(tmp_path: Path) -> None:
    body = """
    for request in requests():
        open(request["outputs"], "w").close()
        say({"seq": request["seq"], "status": "error", "code": "internal", "message": "oh"})
    """
    (result,) = run(fake_port(tmp_path, body), make_suite(tmp_path, case("a")))
    assert result.judgement.outcome == "fail"
    assert "answered error, but wrote a file" in result.judgement.message


def test_an_error_where_a_result_was_due_is_an_error(tmp_path: Path) -> None:
    body = """
    for request in requests():
        say({"seq": request["seq"], "status": "error", "code": "internal", "message": "oh"})
    """
    (result,) = run(fake_port(tmp_path, body), make_suite(tmp_path, case("a")))
    assert result.judgement.outcome == "error"
    assert result.judgement.message == "internal: oh"


def test_the_file_of_an_earlier_request_does_not_count(tmp_path: Path) -> None:
    body = """
    first = True
    for request in requests():
        say(answer(request) if first else ok(request))
        first = False
    """
    results = run(fake_port(tmp_path, RIGHT + dedent(body)), make_suite(tmp_path, case("a"), case("b")))
    assert outcomes(results) == ["pass", "fail"]
    assert "no file" in results[1].judgement.message


def test_a_broken_output_file_is_a_failure_and_the_run_goes_on(tmp_path: Path) -> None:
    body = """
    for request in requests():
        open(request["outputs"], "w").write("no tensors")
        say(ok(request))
    """
    results = run(fake_port(tmp_path, body), make_suite(tmp_path, case("a"), case("b")))
    assert outcomes(results) == ["fail", "fail"]


def test_a_port_sees_inputs_and_nothing_else(tmp_path: Path) -> None:
    body = """
    for request in requests():
        folder = os.path.dirname(request["inputs"])
        print(json.dumps({**request, "beside": sorted(os.listdir(folder))}), file=sys.stderr, flush=True)
        os._exit(0)  # so that the driver quotes stderr
    """
    suite = make_suite(tmp_path, case("b"))
    (result,) = run(fake_port(tmp_path, body), suite)
    message = result.judgement.message
    assert '"beside": ["inputs-' in message
    assert message.count("safetensors") == 3  # inputs, outputs, and the inputs as the only file of the folder
    assert str(tmp_path / "x.") not in message
    assert "expected" not in message.split("stderr:")[1]


def test_a_port_that_dies_costs_its_case_only(tmp_path: Path) -> None:
    body = """
    for request in requests():
        os._exit(1) if request["case"] == "b" else say(answer(request))
    """
    suite = make_suite(tmp_path, case("a"), case("b"), case("c"))
    assert outcomes(run(fake_port(tmp_path, RIGHT + dedent(body)), suite)) == ["pass", "crash", "pass"]


def test_late_output_is_charged_to_the_case_that_caused_it(tmp_path: Path) -> None:
    body = """
    for request in requests():
        if request["case"] == "b":
            time.sleep(0.3)  # what came before has arrived by now
        say(answer(request))
        if request["case"] == "a":
            say("a word too much\\n")
    """
    suite = make_suite(tmp_path, case("a"), case("b"), case("c"))
    results = run(fake_port(tmp_path, RIGHT + dedent(body)), suite)
    bad = [r for r in results if r.judgement.outcome != "pass"]
    assert len(bad) == 1
    assert "a word too much" in bad[0].judgement.message


def test_a_port_that_does_not_start_is_down_for_every_case(tmp_path: Path) -> None:
    suite = make_suite(tmp_path, case("a", dtypes=("f32", "f64")), case("b"))
    results = run(fake_port(tmp_path, "sys.exit('no licence')"), suite)
    assert outcomes(results) == ["crash"] * 3
    assert {r.variant for r in results} == {NO_VARIANT}
    assert all("could not be started" in r.judgement.message for r in results)
    assert all("no licence" in r.judgement.message for r in results)


def test_cases_of_the_benchmark_are_not_asked(tmp_path: Path) -> None:
    timed = Case("t", "softmax", {}, case("t").files, want=["output"], flags=["Bench"])
    results = run(fake_port(tmp_path, RIGHT + ANSWER_ALL), make_suite(tmp_path, case("a"), timed))
    assert [r.case for r in results] == ["a"]


def test_a_cancelled_run_stops_between_two_cases(tmp_path: Path) -> None:
    suite = make_suite(tmp_path, case("a"), case("b"))
    answered: list[Result] = []
    port = fake_port(tmp_path, RIGHT + ANSWER_ALL)
    results = run(port, suite, tick=answered.append, cancelled=lambda: bool(answered))
    assert [r.case for r in results] == ["a"]


def test_the_numpy_port_passes_the_checks_of_the_protocol() -> None:
    port = Port("python", "Python", "port", [sys.executable, "-m", "rosetta_port.numpy_port"])
    with Session(port, timeouts=QUICK) as session:
        session.start()
        results = check_protocol(session)
        assert session.restarts == 0
    assert len(results) == 7 + 9  # and kinds and steps of caches that nobody knows
    assert outcomes(results) == ["pass"] * len(results)


def test_a_careless_wrapper_is_caught_by_the_checks_of_the_protocol(tmp_path: Path) -> None:
    with Session(fake_port(tmp_path, RIGHT + ANSWER_ALL), timeouts=QUICK, max_restarts=20) as session:
        session.start()
        results = {result.case: result.judgement for result in check_protocol(session)}
    assert results["protocol/not-json"].outcome == "crash"
    assert "JSONDecodeError" in results["protocol/not-json"].message
    assert results["protocol/missing-file"].outcome == "crash"
    assert results["protocol/second-start"].outcome == "pass"
