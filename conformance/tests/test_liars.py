"""Ports that break one rule each, over the real fixtures: every one must be caught, in the case that names its lie.

`liars/` holds the ports. That they are caught proves two things at once: that the judge judges, and that the inputs
tell right from wrong.
"""

import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec
import pytest

from conformance.case import Case
from conformance.fixtures import LoadedSuite, load_suites
from conformance.known_failures import BAD
from conformance.outcome import Outcome, Result
from conformance.ports import Port
from conformance.questions import Narrowing
from conformance.run import run_port
from conformance.session import Session, Timeouts

FOLDER = Path(__file__).parent / "liars"
# A liar that hangs is waited for this long, and one that keeps dying is given up soon.
TIMEOUTS = Timeouts(start=60, run=1.5)
MAX_RESTARTS = 3
# Two honest ones, and the liars of test_metamorphic, of test_fuzz_caches and of test_fuzz_kernels.
ELSEWHERE = {"honest", "machine_port", "noisy", "cache_rows"}
ELSEWHERE |= {"kernel_hidden_block", "kernel_last_lane", "kernel_correction"}
OTHERS = 5  # every so many cases are asked whatever their flags,
MOST_OTHERS = 25  # or so many of a large suite


@dataclass(frozen=True)
class Liar:
    """A script, the op that it lies about, the case that must show it and how, and the flag that names the lie.

    message: part of what the result says. dtype, variant: what it is asked.
    """

    script: str
    op: str
    case: str
    flag: str
    outcome: Outcome = "fail"
    message: str = ""
    dtype: str = "f32"
    variant: str = "naive"

    def __str__(self) -> str:
        return f"{self.op}-{self.script}".replace(" ", "-")


LIARS = [
    Liar("zeros", "sdpa", "sdpa/by-hand/one-third", "ByHand", message="got 0"),
    Liar("echo", "softmax", "softmax/by-hand/one-third", "ByHand"),
    Liar("double_out", "softmax", "softmax/by-hand/one-third", "ByHand", message="wrong dtype"),
    Liar("float16_inside", "sdpa", "sdpa/by-hand/one-third", "ByHand"),
    Liar("tile", "sdpa", "sdpa/gqa/by-hand-6-2", "GqaTile"),
    Liar("softcap_after_mask", "sdpa", "sdpa/mask/softcap-order", "SoftcapOrder"),
    Liar("finite_sentinel -1e9", "sdpa", "sdpa/mask/fully-masked-row", "FullyMaskedRow"),
    Liar("finite_sentinel min", "sdpa", "sdpa/mask/fully-masked-row", "FullyMaskedRow"),
    Liar("window_off_by_one", "sdpa", "sdpa/window/left-1-causal", "WindowOffByOne"),
    Liar("scale_zero", "sdpa", "sdpa/scale/zero", "AbsentIsNotZero"),
    Liar("bias_dropped_at_decode", "sdpa", "sdpa/bias/decode", "BiasIsNotMask"),
    Liar("nan_leak", "sdpa", "sdpa/poison/mask-nan", "HiddenPoison", message="NaN"),
    Liar("last_channel", "sdpa", "sdpa/by-hand/last-channel", "VectorTail"),
    Liar("bottom_right", "sdpa", "sdpa/causal/top-left", "CausalAlignment"),
    Liar("column_major", "sdpa", "sdpa/layout/arange", "AxisOrder"),
    Liar("mean_of_nothing", "sdpa", "sdpa/empty/no-keys", "EmptyKeys", message="NaN"),
    Liar("scale_by_value_dim", "sdpa", "sdpa/scale/default", "ValueDim"),
    Liar("file_in_name_order", "sdpa", "sdpa/file/unaligned", "FileLayout"),
    Liar("flush_to_zero", "sdpa", "sdpa/extreme/subnormal", "Subnormal"),
    Liar("padding_seen_at_decode", "sdpa", "sdpa/mask/left-padding", "LeftPadding"),
    Liar("polarity", "sdpa", "sdpa/mask/polarity", "MaskPolarity"),
    Liar("forgets_causal", "sdpa", "sdpa/composition/causal-mask-output", "MaskComposition"),
    Liar("lse_log2", "softmax", "softmax/by-hand/one-third", "LseNatural", message="lse"),
    Liar("maximum_from_zero", "softmax", "softmax/large/negative", "Overflow"),
    Liar("merged_wrong", "mha", "mha/by-hand/merge", "HeadReshape"),
    Liar("cast_by_f32", "cast", "cast/to-bf16/double-rounding", "HalfRounding", dtype="f64"),
    Liar("cast_truncates", "cast", "cast/to-bf16/ties", "HalfRounding"),
    Liar("half_inside", "sdpa", "sdpa/half/gqa", "HalfInside", dtype="bf16"),
    Liar("dropout_words key", "dropout", "dropout/seed/4294967296", "DropoutMask"),
    Liar("dropout_words counter", "dropout", "dropout/offset/17179869184", "DropoutMask"),
    Liar("dropout_words order", "dropout", "dropout/by-hand/half", "DropoutMask"),
    Liar("dropout_unscaled", "dropout", "dropout/by-hand/half", "DropoutScale"),
    Liar("dropout_renormalises", "sdpa", "dropout/sdpa/by-hand/half", "DropoutScale"),
    Liar("rope_pairs other", "rope", "positions/rope/by-hand/half-split", "RopePairing"),
    Liar("rope_pairs mixed", "rope", "positions/rope/by-hand/half-split", "RopePairing"),
    Liar("keys_turned_twice", "mha", "mha/by-hand/rope", "RopePosition"),
    Liar("rope_from_zero", "rope", "positions/rope/offset/1", "RopePosition"),
    Liar("rope_angles_f32", "rope", "positions/rope/positions/far", "AnglePrecision"),
    Liar("rope_partial", "rope", "positions/rope/partial/8-4", "RopePartial"),
    Liar("rope_scaling ignored", "rope", "positions/rope/linear/by-hand", "RopeScaling"),
    Liar("rope_scaling factor", "rope", "positions/rope/yarn/attention-factor", "RopeScaling"),
    Liar("alibi_geometric", "alibi", "positions/alibi/by-hand/three", "AlibiSlopes"),
    Liar("buckets_reversed", "relative_bias", "positions/relative_bias/by-hand/both", "RelativeBuckets"),
    Liar("merge_base_2", "merge", "flash/merge/by-hand/quarter", "LseNatural"),
    Liar("merge_reads_empty", "merge", "flash/merge/empty/first", "EmptyState", message="NaN"),
    Liar("flash_first_tile", "sdpa", "flash/hidden/first", "HiddenTile", message="NaN", variant="flash"),
    Liar("flash_last_tile", "sdpa", "flash/block-k/2", "VectorTail", variant="flash"),
    *(
        Liar(f"fast_rung {lie}", "sdpa", f"sdpa/{case}", flag, variant="simd")
        for lie, case, flag in (
            ("channels", "head-size/17", "VectorTail"),
            ("values", "value-size/17", "VectorTail"),
            ("keys", "kv-len/17", "VectorTail"),
            ("rows", "q-len/17", "VectorTail"),
            ("stops", "blocks/hidden-middle", "HiddenTile"),
            ("reads", "blocks/hidden-middle-bias", "HiddenPoison"),
            ("nan", "blocks/nan-key", "VisibleNaN"),
            ("top", "blocks/rising", "Overflow"),
        )
    ),
    Liar("sequence_leak", "varlen", "varlen/by-hand/two", "SequenceLeak"),
    Liar("scaled_is_dot", "scoring", "scoring/by-hand/scaled", "ScoreForm"),
    Liar("packed_in_blocks", "mha", "mha/by-hand/heads", "PackedLayout"),
    Liar("head_mask inverted", "mha", "mha/by-hand/head-mask", "HeadMask"),
    Liar("head_mask multiplied", "mha", "mha/head-mask/poison", "HeadMask", message="NaN"),
    Liar("qk_norm_shared", "mha", "mha/qk-norm/both", "QkNorm"),
    Liar("polarity_of_layer", "mha", "mha/by-hand/polarity", "MaskPolarity"),
    Liar("norm_statistics one_pass", "layer_norm", "norms/layer_norm/large-mean/by-hand", "OnePassVariance"),
    Liar("norm_statistics unbiased", "layer_norm", "norms/layer_norm/by-hand/population", "VarianceDivisor"),
    Liar("norm_statistics outside", "layer_norm", "norms/layer_norm/by-hand/eps", "VarianceDivisor"),
    Liar("rms_norm_half", "rms_norm", "norms/rms_norm/half/large", "HalfInside", dtype="f16"),
    Liar("gelu_by_tanh", "gelu", "norms/gelu/by-hand/exact", "GeluForm"),
    Liar("gelu_by_tanh", "block", "block/block/gelu/layer/pre", "GeluForm"),
    Liar("gelu_by_tanh", "transformer", "block/transformer/bert/2", "GeluForm"),
    Liar("gate_swapped", "swiglu", "norms/swiglu/by-hand/gate", "GateOrder"),
    Liar("gate_swapped", "transformer", "block/transformer/llama/3", "GateOrder"),
    Liar("linear_sums state", "linear_attention", "linear/attention/by-hand/state", "StateCarried"),
    Liar("linear_sums whole", "linear_attention", "linear/attention/by-hand/causal", "LinearNormaliser"),
    Liar("linear_sums relu", "linear_attention", "linear/attention/by-hand/negative", "FeatureMap"),
    Liar(
        "linear_sums chunk",
        "linear_attention",
        "linear/attention/chunk/2-5",
        "ChunkEdge",
        variant="chunked",
    ),
    Liar("decay_late", "gated_linear", "linear/gated/by-hand/gated-delta", "DecayOrder"),
    Liar("sparse_keys column", "sparse", "sparse/by-hand/strided", "SparsePattern"),
    Liar("sparse_keys all", "sparse", "sparse/by-hand/fixed", "SparsePattern", message="visited"),
    Liar("sparse_keys replacement", "sparse", "sparse/seed/0", "RandomBlocks"),
    Liar("latent_attention absorbed", "mla", "mla/by-hand/scale", "AbsorbedScale", variant="absorbed"),
    Liar("latent_attention plain", "mla", "mla/by-hand/turned", "SharedRopeKey"),
    Liar("residual_normed", "block", "block/block/by-hand/pre", "ResidualOrder"),
    Liar("residual_normed", "transformer", "block/transformer/gpt/2", "ResidualOrder"),
    Liar("cache_slots rows", "cache_write", "cache_write/by-hand/rows", "CircularWrite"),
    Liar(
        "cache_slots last",
        "cache_write",
        "cache_write/error/negative",
        "NegativeIndex",
        message="expected the error invalid_config, got a",
    ),
    Liar("top_left", "kv_cache", "kv_cache/by-hand/second-chunk", "ChunkedPrefill"),
    Liar("stale_cache", "kv_cache", "kv_cache/by-hand/stale-reset", "StaleReset"),
    *(
        Liar(script, "kv_cache", f"kv_cache/{case}", flag)
        for script, case, flag in (
            ("cache_windows early", "rotating/by-hand/decode", "WindowBoundary"),
            ("cache_windows after", "rotating/by-hand/long-prefill", "RingWrap"),
            ("cache_windows sinks", "rotating/by-hand/keep", "KeptSinks"),
            ("cache_windows slots", "evict/by-hand", "EvictedPositions"),
            ("cache_windows slots", "rope/rotating", "RopePosition"),
            ("cache_windows twice", "rope/by-hand/decode", "RopePosition"),
            ("cache_windows zero", "rope/by-hand/decode", "RopePosition"),
            ("cache_pages share", "paged/by-hand/fork", "CopyOnWrite"),
            ("cache_pages free", "paged/by-hand/drop", "PageCount"),
            ("cache_pages adds", "paged/by-hand/reuse", "PageReuse"),
            ("cache_pages padding", "paged/by-hand/padding", "PadSlot"),
            ("cache_pages byte", "prefix/other-tokens/low-byte", "PrefixSharing"),
            ("cache_pages page", "prefix/other-tokens/earlier", "PrefixSharing"),
            ("cache_codes scale", "quantised/by-hand/int8", "QuantisedScale"),
            ("cache_codes first", "quantised/int8", "QuantisedScale"),
            ("cache_codes zero", "quantised/zero-group/int8", "ZeroGroup"),
            ("cache_codes away", "quantised/ties/int8", "CodeRounding"),
            ("cache_codes byte", "quantised/by-hand/nibbles", "CodeRounding"),
            ("cache_codes fp8", "quantised/fp8/table", "CodeRounding"),
            ("cache_lives same", "fork/by-hand/two-continuations", "CacheAliasing"),
            ("cache_lives place", "reorder/by-hand/swap", "BeamReorder"),
            ("cache_lives right", "padding/by-hand/left", "LeftPadding"),
            ("cache_lives fails", "append-attend/failure/contiguous", "NothingChanged"),
            ("cache_lives positions", "save/gaps", "SavedState"),
            ("cache_lives still", "shift/by-hand", "ShiftTurns"),
            ("cache_lives latent", "latent/by-hand/scale", "LatentParts"),
            ("cache_policies last", "policy/ties/key_norm", "EvictionTies"),
            ("cache_policies nan", "policy/key_norm/poison-2", "NanScore"),
            ("cache_policies sinks", "policy/window/by-hand", "ProtectedSlots"),
            ("cache_policies recent", "policy/key_norm/sinks-recent", "ProtectedSlots"),
            ("cache_policies pool", "policy/snapkv/pool/three-sink", "PooledScores"),
            ("cache_policies largest", "policy/key_norm/by-hand", "SmallKeysStay"),
            ("cache_policies pairs", "policy/key_norm/order/channels", "SumOrder"),
            ("cache_policies ahead", "policy/snapkv/causal", "ObservedWeights"),
            ("cache_policies together", "per_head/by-hand/own", "HeadBudgets"),
            ("cache_policies first", "per_head/by-hand/list", "HeadBudgets"),
            ("cache_policies mean", "per_head/by-hand/dropped", "HeadBudgets"),
            ("cache_policies stay", "track/by-hand", "TrackedWeights"),
            ("cache_policies rows", "track/moves/contiguous", "TrackedWeights"),
            ("cache_policies newest", "policy/heavy_hitters/all-attends", "TrackedWeights"),
            ("cache_groups token", "key_groups/by-hand/outlier", "KeyGroups"),
            ("cache_groups eager", "key_groups/by-hand/tail", "GroupTail"),
            ("cache_groups stale", "key_groups/by-hand/cut", "KeyGroups"),
            ("cache_bugs square", "by-hand/second-chunk", "ChunkedPrefill"),
            ("cache_bugs windowless", "by-hand/window", "WindowBoundary"),
            ("cache_bugs base", "by-hand/lse", "LseNatural"),
            ("cache_bugs forgets", "by-hand/rollback", "Rollback"),
            ("cache_bugs keeps", "by-hand/rollback", "Rollback"),
            ("cache_bugs logical", "rotating/truncate/beyond", "RingWrap"),
            ("cache_bugs column", "by-hand/layout", "AxisOrder"),
            ("cache_groups slot", "rope-at/by-hand/gap", "RopeAtAttend"),
        )
    ),
    Liar(
        "always_ok",
        "sdpa",
        "sdpa/error/rank-3",
        "ErrorCode",
        message="expected the error shape_mismatch, got a",
    ),
    Liar("wrong_code", "sdpa", "sdpa/error/rank-3", "ErrorCode", message="shape_mismatch, got internal"),
    Liar(
        "partial_write", "sdpa", "sdpa/error/rank-3", "ErrorCode", message="answered error, but wrote a file"
    ),
    Liar(
        "claims_what_it_lacks",
        "sdpa",
        "sdpa/softcap/scale-first",
        "SoftcapOrder",
        message="claimed all of it, then answered unsupported: softcap",
    ),
    Liar("log_line", "softmax", "softmax/size/2", "VectorTail", "crash", "'INFO request "),
    Liar("death_mid_line", "softmax", "softmax/size/5", "VectorTail", "crash", "in the middle of a line"),
    Liar("hang", "softmax", "softmax/size/5", "VectorTail", "timeout", "no answer within 1.5 s"),
    Liar(
        "out_of_order",
        "softmax",
        "softmax/by-hand/uniform",
        "ByHand",
        "crash",
        "expected the answer to seq 2",
    ),
    Liar("duplicate", "softmax", "softmax/size/2", "VectorTail", "crash", "was followed by"),
]


@cache
def suites_of(op: str) -> list[LoadedSuite]:
    return load_suites([op])


def choose(op: str, flag: str, dtype: str = "f32") -> list[LoadedSuite]:
    """The cases that carry the flag, and some others for contrast: a liar need not be asked everything."""
    return [
        replace(
            loaded,
            suite=msgspec.structs.replace(
                loaded.suite,
                cases=[
                    case
                    for n, case in enumerate(loaded.suite.cases)
                    if dtype in case.files
                    and (flag in case.flags or n % max(OTHERS, len(loaded.suite.cases) // MOST_OTHERS) == 0)
                ],
            ),
        )
        for loaded in suites_of(op)
    ]


def cases_of(suites: list[LoadedSuite]) -> dict[str, Case]:
    return {case.id: case for suite in suites for case in suite.suite.cases}


def ask(script: str, suites: list[LoadedSuite], dtype: str = "f32", variant: str = "naive") -> list[Result]:
    """All cases of the suites, in one type, of one variant."""
    name, *arguments = script.split()
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    port = Port(name=name, language="Python", kind="port", command=command)
    with Session(port, timeouts=TIMEOUTS, max_restarts=MAX_RESTARTS) as session:
        return run_port(session, suites, Narrowing(dtypes=[dtype], variants=[variant]))


@pytest.mark.parametrize("liar", LIARS, ids=str)
def test_a_liar_is_caught_in_the_case_that_names_its_lie(liar: Liar) -> None:
    suites = choose(liar.op, liar.flag, liar.dtype)
    cases = cases_of(suites)
    results = {r.case: r for r in ask(liar.script, suites, liar.dtype, liar.variant)}
    assert list(results) == list(cases), "a fault may cost a case, but never its result"
    bad = {case for case, result in results.items() if result.judgement.outcome in BAD}
    judgement = results[liar.case].judgement
    assert judgement.outcome == liar.outcome, judgement
    assert liar.message in judgement.message
    assert liar.flag in cases[liar.case].flags
    assert len(bad) < len(results), "a liar is honest in something"


@pytest.mark.parametrize("op", sorted({liar.op for liar in LIARS}))
def test_the_honest_control_passes_everything(op: str) -> None:
    results = ask("honest", suites_of(op))
    assert [r for r in results if r.judgement.outcome != "pass"] == []
    assert len(results) == sum("f32" in case.files for case in cases_of(suites_of(op)).values())


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_machine_of_the_caches_passes_every_script_as_a_port(dtype: str) -> None:
    cases = cases_of(suites_of("kv_cache")).values()
    scripts = {case.id for case in cases if case.error is None and dtype in case.files}
    results = [r for r in ask("machine_port", suites_of("kv_cache"), dtype) if r.case in scripts]
    assert {r.case for r in results} == scripts
    assert [r for r in results if r.judgement.outcome != "pass"] == []


def test_every_liar_is_tried() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py")} - ELSEWHERE
    assert scripts == {liar.script.split()[0] for liar in LIARS}


def test_the_first_step_that_differs_is_named() -> None:
    results = {result.case: result for result in ask("softcap_after_mask", choose("sdpa", "SoftcapOrder"))}
    step = results["sdpa/mask/softcap-order"].judgement.first_step
    assert step is not None
    assert step.tensor == "weights"


def test_a_liar_that_keeps_dying_is_given_up_and_says_so() -> None:
    results = ask("log_line", choose("softmax", "VectorTail"))
    given_up = [r for r in results if "given up after 3 restarts" in r.judgement.message]
    assert given_up
    assert {result.judgement.outcome for result in given_up} == {"crash"}


def test_a_case_after_a_death_is_asked_again_of_a_new_process() -> None:
    results = {
        result.case: result.judgement.outcome
        for result in ask("death_mid_line", choose("softmax", "VectorTail"))
    }
    assert [case for case, outcome in results.items() if outcome != "pass"] == ["softmax/size/5"]
