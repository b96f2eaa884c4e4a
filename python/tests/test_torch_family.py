"""Every op that PyTorch has a text of: as NumPy's in f64, in f32 for half types, with the same errors."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from values import leaves, normal

import rosetta_attention as ra

torch = pytest.importorskip("torch")
functional = torch.nn.functional

from rosetta_attention import torch as rt  # noqa: E402
from rosetta_port import torch_port  # noqa: E402

HALF = {"f16": torch.float16, "bf16": torch.bfloat16}
INF, NAN = np.inf, np.nan
LENGTHS, CAUSAL = np.array([3, 1]), {"causal": True}
SCALINGS = {
    "linear": lambda api: api.LinearScaling(4.0),
    "dynamic": lambda api: api.DynamicScaling(2.0, 4),
    "dynamic stated": lambda api: api.DynamicScaling(2.0, 4, 9),
    "yarn": lambda api: api.YarnScaling(4.0, 64),
    "yarn whole": lambda api: api.YarnScaling(4.0, 64, 8, 2, 1.5, truncate=False),
    "llama3": lambda api: api.Llama3Scaling(8.0, 64),
    "longrope": lambda api: api.LongRopeScaling([1.0, 2, 3, 4], [5.0, 6, 7, 8], 5, 2.0),
    "longrope stated": lambda api: api.LongRopeScaling([1.0, 2, 3, 4], [5.0, 6, 7, 8], 5, length=9),
}
OPS = [
    *("softmax", "sdpa", "mha", "kv_cache", "rope", "scoring", "merge", "linear_attention", "gated_linear"),
    *("layer_norm", "rms_norm", "gelu", "swiglu", "block"),
]


def qkv(c, *, queries=3):
    return c(normal(2, 4, queries, 8)), c(normal(2, 2, 3, 8, seed=1)), c(normal(2, 2, 3, 5, seed=2))


def mha(api, c, **options):
    w = [c(normal(*shape, seed=s)) for s, shape in enumerate(((32, 6), (16, 6), (10, 6), (7, 20)))]
    biases = {f"b_{part}": c(normal(n, seed=9)) for part, n in zip("qkvo", (32, 16, 10, 7), strict=True)}
    return api.MultiHeadAttention(*w, 4, 2, **biases, **options)


def packed(api, c, packing):
    w = (c(normal(8 * 4, 6)), c(normal(6, 16, seed=1)))
    return api.MultiHeadAttention.packed(*w, 4, 2, packing=packing, b_qkv=c(normal(32, seed=2)))


def block(api, c, *, kind="layer", activation="gelu", norm_first=True, cross=False):
    w = lambda *shape, seed: c(normal(*shape, seed=seed) / 2)  # noqa: E731
    norm = lambda seed: api.Norm(w(8, seed=seed), None if kind == "rms" else w(8, seed=7), kind)  # noqa: E731
    layer = api.MultiHeadAttention(
        *(w(8, 8, seed=s) for s in range(4)), 2, q_norm=w(4, seed=5), k_norm=w(4, seed=6), rope=api.Rope()
    )
    gate = {"w_3": w(16, 8, seed=11), "b_3": w(16, seed=12)} if activation == "swiglu" else {}
    ff = api.FeedForward(
        w(16, 8, seed=9), w(8, 16, seed=10), w(16, seed=1), w(8, seed=2), **gate, activation=activation
    )
    more = {"cross": dataclasses.replace(layer, rope=None), "norm_3": norm(13)} if cross else {}
    return api.Block(layer, ff, norm(6), norm(8), **more, norm_first=norm_first)


def state(api, c):
    return api.LinearState(c(normal(2, 2, 8, 5, seed=3)), c(np.abs(normal(2, 2, 8, seed=4))))


def gated(rule, **options):
    gates = {
        "decay": lambda c: c(-np.abs(normal(2, 2, 3, 8, seed=5))),
        "beta": lambda c: c(normal(2, 1, 3, 1)),
    }
    takes = {"linear": (), "gated": ("decay",), "delta": ("beta",), "gated_delta": ("decay", "beta")}[rule]
    return lambda api, c: api.gated_linear(
        *qkv(c), rule=rule, **{name: gates[name](c) for name in takes}, **options
    )


def scoring(form):
    shapes = {
        **{"additive": {"w_q": (6, 4), "w_k": (6, 4), "w_v": (6,)}, "general": {"w": (4, 4)}},
        **{"dot": {}, "scaled": {}},
    }[form]
    return lambda api, c: api.scoring_steps(
        form,
        *(c(normal(2, n, 4, seed=n)) for n in (3, 5, 5)),
        **{name: c(normal(*shape)) for name, shape in shapes.items()},
        kv_lengths=c(LENGTHS),
    )


# Calls on arrays that `c` makes of NumPy's; float ones get the type of the test.
CALLS = {
    "softmax": lambda api, c: api.softmax_lse(c(normal(3, 4)), c(normal(3))),
    "sdpa": lambda api, c: api.sdpa_steps(
        *qkv(c),
        mask=api.Mask(**CAUSAL),
        bias=c(normal(3, 3)),
        softcap=2.0,
        sinks=c(normal(4)),
        dropout=api.Dropout(0.5, 3),
    ),
    "sdpa nothing kept": lambda api, c: api.sdpa(*qkv(c), dropout=api.Dropout(1.0, 3)),
    "merge": lambda api, c: api.merge(
        *(c(normal(2, 3, 5)), c(np.array([[0, -INF, 1], [-INF, -INF, INF]]), "lse")),
        *(c(normal(2, 3, 5, seed=1)), c(np.array([[1, 2, -INF], [-INF, 0, 0]]), "lse")),
    ),
    "rope": lambda api, c: api.rope_steps(
        c(normal(2, 3, 4, 8)), api.Rope(interleaved=True, rotary_dim=6, offset=100000)
    ),
    "rope positions": lambda api, c: api.rope_steps(
        c(normal(2, 3, 2, 8)), positions=c(np.array([[3, 1], [0, -7]]))
    ),
    "rope tables": lambda api, c: api.rope_steps(
        c(normal(2, 3, 4, 8)), cos=c(normal(9, 4)), sin=c(normal(9, 4, seed=1))
    ),
    **{
        f"rope {name}": lambda api, c, make=make: api.rope_steps(
            c(normal(2, 1, 2, 8)), api.Rope(scaling=make(api)), positions=c(np.array([[3, 1], [2, 11]]))
        )
        for name, make in SCALINGS.items()
    },
    "rope last position": lambda api, c: api.rope_steps(
        c(normal(1, 1, 1, 8)),
        api.Rope(scaling=api.LongRopeScaling([1.0, 2, 3, 4], [5.0, 6, 7, 8], 5)),
        positions=c(np.array([[2**63 - 1]])),
    ),
    **{f"scoring {form}": scoring(form) for form in ("additive", "dot", "general", "scaled")},
    "linear": lambda api, c: api.linear_attention(*qkv(c, queries=2), state=state(api, c)),
    "linear causal": lambda api, c: api.linear_attention(*qkv(c), **CAUSAL),
    **{rule: gated(rule) for rule in ("linear", "gated", "delta", "gated_delta")},
    "gated state": lambda api, c: gated("delta", state=state(api, c).state, scale=0.5)(api, c),
    "mha": lambda api, c: mha(api, c).steps(
        c(normal(2, 3, 6)),
        c(normal(2, 5, 6, seed=1)),
        head_mask=c(np.array([True, False, True, True])),
        dropout=api.Dropout(0.25, 1),
    ),
    "mha rope": lambda api, c: mha(
        *(api, c), q_norm=c(normal(8)), k_norm=c(normal(8, seed=1)), rope=api.Rope()
    ).steps(c(normal(2, 3, 6)), positions=c(np.array([[0, 1, 2], [5, 3, 4]])), mask=api.Mask(**CAUSAL)),
    "mha blocks": lambda api, c: packed(api, c, "blocks").steps(c(normal(2, 3, 6))),
    "mha heads": lambda api, c: packed(api, c, "heads").steps(c(normal(2, 3, 6))),
    "layer_norm": lambda api, c: api.layer_norm_steps(c(normal(3, 5)), c(normal(5)), c(normal(5, seed=1))),
    "rms_norm": lambda api, c: api.rms_norm(c(normal(3, 5)), c(normal(5))),
    "gelu": lambda api, c: api.gelu(c(3 * normal(40))),
    "gelu tanh": lambda api, c: api.gelu(c(3 * normal(40)), approximate="tanh"),
    "swiglu": lambda api, c: api.swiglu(c(3 * normal(40)), c(normal(40)), alpha=1.702),
    "block": lambda api, c: block(api, c)(c(normal(2, 3, 8)), **CAUSAL, kv_lengths=c(LENGTHS)),
    "block post": lambda api, c: block(api, c, norm_first=False, activation="relu")(c(normal(2, 3, 8))),
    "block rms": lambda api, c: block(api, c, kind="rms", activation="swiglu")(c(normal(2, 3, 8))),
    "block cross": lambda api, c: block(api, c, activation="gelu_tanh", cross=True)(
        c(normal(2, 3, 8)), c(normal(2, 5, 8, seed=1)), context_lengths=c(LENGTHS)
    ),
}


def maker(dtype, *, beside=None):
    """Tensors of a float type; those called lse of another one, if that is given."""

    def make(x, name=""):
        tensor = torch.from_numpy(x)
        kind = beside if name == "lse" and beside is not None else dtype
        return tensor.to(kind) if tensor.is_floating_point() else tensor

    return make


@pytest.mark.parametrize("name", CALLS)
def test_the_two_texts_agree(name):
    want = leaves(CALLS[name](ra, lambda x, name="": x))
    got = leaves(CALLS[name](rt, maker(torch.float64)))
    assert [part for part, _ in got] == [part for part, _ in want]
    for (part, x), (_, y) in zip(got, want, strict=True):
        assert x.dtype == torch.float64
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-11, atol=1e-12, err_msg=part)


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("name", CALLS)
def test_an_op_runs_in_f32_and_rounds_once(name, half):
    rounded = lambda x, name="": maker(HALF[half], beside=torch.float32)(x, name)  # noqa: E731
    wide = lambda x, name="": rounded(x, name).float() if x.dtype.kind == "f" else rounded(x)  # noqa: E731
    got, want = leaves(CALLS[name](rt, rounded)), leaves(CALLS[name](rt, wide))
    for (part, x), (_, y) in zip(got, want, strict=True):
        assert y.dtype == torch.float32
        torch.testing.assert_close(
            x, y if part == "lse" else y.to(HALF[half]), rtol=0, atol=0, equal_nan=True, msg=part
        )


@pytest.mark.parametrize("name", CALLS)
def test_strides_do_not_matter(name):
    """Every other element of a transposed tensor twice as long."""

    def strided(x, name=""):
        tensor = torch.from_numpy(x)
        return tensor.mT.repeat_interleave(2, dim=-1).mT[..., ::2, :] if x.ndim > 1 else tensor

    for (part, x), (_, y) in zip(
        leaves(CALLS[name](rt, strided)), leaves(CALLS[name](rt, maker(torch.float64))), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-13, equal_nan=True, msg=part)


def test_a_gradient_flows_through_every_layer():
    x, context = (torch.from_numpy(normal(2, 3, 8, seed=s)).requires_grad_() for s in (0, 1))
    layer = block(rt, maker(torch.float64), cross=True)
    assert torch.autograd.gradcheck(lambda *inputs: layer(*inputs, causal=True), (x, context))
    inputs = [t.requires_grad_() for t in qkv(maker(torch.float64))]
    for call in (gated("linear"), CALLS["linear causal"]):
        assert torch.autograd.gradcheck(lambda *_, call=call: call(rt, _next(inputs))[0], inputs)


def _next(inputs):
    """A maker that gives these tensors, one a call."""
    rest = iter(inputs)
    return lambda x, name="": next(rest)


@pytest.mark.parametrize("half", HALF)
def test_a_cache_stores_halves_and_attends_in_f32(half):
    k, v, q = (torch.from_numpy(normal(2, 2, 3, 4, seed=s)).to(HALF[half]) for s in range(3))
    cache = rt.KVCache(2, 2, 4, dtype=HALF[half])
    cache.append(k[:, :, :1], v[:, :, :1])
    cache.append(k[:, :, 1:], v[:, :, 1:], torch.tensor([2, 1]))
    steps = cache.attend_steps(q[:, :, :1])
    want = rt.sdpa_steps(q[:, :, :1], k, v, mask=rt.Mask(kv_lengths=torch.tensor([3, 2])))
    assert torch.equal(steps.output, want.output)
    assert (steps.output.dtype, steps.lse.dtype) == (HALF[half], torch.float32)
    read_k, _, lengths = cache.read()
    assert torch.equal(read_k[0], k[0])
    assert read_k[1, :, 2].eq(0).all()
    assert lengths.tolist() == [3, 2]
    with pytest.raises(rt.DtypeMismatch):
        cache.append(k.float(), v)


@pytest.mark.parametrize("half", HALF)
def test_fused_attention_takes_halves_but_no_dropout(half):
    inputs = qkv(maker(HALF[half]))
    want = rt.sdpa(*(x.float() for x in inputs)).to(HALF[half])
    torch.testing.assert_close(rt.sdpa_fused(*inputs), want, rtol=2**-7, atol=0)
    with pytest.raises(rt.Unsupported) as caught:
        rt.sdpa_fused(*inputs, dropout=rt.Dropout(0.5, 1))
    assert caught.value.feature == "dropout"


BAD = {
    "types": lambda api, c: api.sdpa(c(np.float16(normal(1, 1, 2, 4))), *[c(normal(1, 1, 2, 4))] * 2),
    "merge": lambda api, c: api.merge(c(normal(2, 3)), c(normal(3)), c(normal(2, 3)), c(normal(2))),
    "dropout": lambda api, c: api.sdpa(*qkv(c), dropout=api.Dropout(2.0, 1)),
    "rope": lambda api, c: api.rope(c(normal(1, 1, 2, 5))),
    "rope table": lambda api, c: api.rope(
        c(normal(1, 1, 2, 4)), api.Rope(offset=8), cos=c(normal(9, 2)), sin=c(normal(9, 2))
    ),
    "scaling": lambda api, c: api.rope(
        c(normal(1, 1, 2, 4)), api.Rope(scaling=api.LongRopeScaling([1.0], [1.0], 4))
    ),
    "positions": lambda api, c: api.rope(c(normal(1, 1, 2, 4)), positions=c(np.zeros((1, 2), np.int32))),
    "form": lambda api, c: api.scoring("cosine", *[c(normal(1, 2, 4))] * 3),
    "weights": lambda api, c: api.scoring("general", *[c(normal(1, 2, 4))] * 3),
    "state": lambda api, c: api.linear_attention(
        *qkv(c), state=api.LinearState(c(normal(2, 2, 8, 4)), c(normal(2, 2, 8)))
    ),
    "causal": lambda api, c: api.linear_attention(*qkv(c, queries=2), causal=True),
    "decay": lambda api, c: api.gated_linear(*qkv(c), rule="gated", decay=c(normal(2, 2, 3, 3))),
    "head mask": lambda api, c: mha(api, c)(c(normal(2, 3, 6)), head_mask=c(np.ones(4))),
    "rope and context": lambda api, c: mha(api, c, rope=api.Rope())(*[c(normal(2, 3, 6))] * 2),
    "packing": lambda api, c: packed(api, c, "rows"),
    "packed": lambda api, c: api.MultiHeadAttention.packed(c(normal(9, 6)), c(normal(6, 16)), 4, 2),
    "eps": lambda api, c: api.layer_norm(c(normal(2, 3)), eps=-1),
    "channels": lambda api, c: api.rms_norm(c(normal(2, 0))),
    "approximate": lambda api, c: api.gelu(c(normal(2)), approximate="erf"),
    "shapes": lambda api, c: api.swiglu(c(normal(2)), c(normal(3))),
    "alpha": lambda api, c: api.swiglu(c(normal(2)), c(normal(2)), alpha=NAN),
    "activation": lambda api, c: block(api, c, activation="silu")(c(normal(2, 3, 8))),
    "context": lambda api, c: block(api, c, cross=True)(c(normal(2, 3, 8))),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_answered_alike(name):
    with pytest.raises(ra.AttentionError) as want:
        BAD[name](ra, lambda x: x)
    with pytest.raises(ra.AttentionError) as got:
        BAD[name](rt, torch.from_numpy)
    assert type(got.value) is type(want.value)
    assert str(got.value).replace("torch.Size([", "(").replace("])", ")") == str(want.value)


def test_sizes_of_zero():
    zeros = torch.zeros
    assert rt.rope(zeros(0, 2, 3, 4)).shape == (0, 2, 3, 4)
    scaled = rt.Rope(scaling=rt.DynamicScaling(2.0, 4))
    assert rt.rope(zeros(2, 2, 0, 4), scaled, positions=zeros(2, 0, dtype=torch.int64)).shape == (2, 2, 0, 4)
    assert rt.scoring("dot", zeros(1, 2, 4), zeros(1, 0, 4), zeros(1, 0, 3)).eq(0).all()
    for call in (rt.linear_attention, rt.gated_linear):
        output, _ = call(zeros(1, 2, 0, 4), zeros(1, 1, 0, 4), zeros(1, 1, 0, 3))
        assert output.shape == (1, 2, 0, 3)
    assert rt.merge(zeros(0, 3), zeros(0), zeros(0, 3), zeros(0)).output.shape == (0, 3)
    assert block(rt, maker(torch.float32))(zeros(0, 3, 8)).shape == (0, 3, 8)
    assert block(rt, maker(torch.float32))(zeros(2, 0, 8)).shape == (2, 0, 8)


class TestWhatIsSaidOfPyTorch:
    """Where the texts have a formula in place of torch.nn.functional."""

    def test_gelu_at_infinity(self):
        """There torch's own is NaN, where oneDNN has it and the tensor is not tiny."""
        x = torch.tensor([INF, -INF] * 16)
        for approximate in ("none", "tanh"):
            got = rt.gelu(x, approximate=approximate)
            assert got[::2].eq(INF).all()
            assert got[1::2].isnan().all()

    def test_elu_loses_digits(self):
        x = torch.full((1, 1, 1, 1), -20.0)
        assert functional.elu(x).item() + 1 == 0
        _, past = rt.linear_attention(x, x, x)
        np.testing.assert_allclose(past.norm.item(), np.exp(-20), rtol=1e-6)

    def test_norms_are_those_of_torch(self):
        x, w, b = (torch.from_numpy(normal(*shape)) for shape in ((3, 7), (7,), (7,)))
        torch.testing.assert_close(rt.layer_norm(x, w, b), functional.layer_norm(x, (7,), w, b))
        torch.testing.assert_close(rt.rms_norm(x, w), functional.rms_norm(x, (7,), w, eps=1e-5))


class TestThePort:
    def test_what_it_claims(self):
        ops = torch_port.LIBRARY.ops()
        assert sorted(ops) == sorted(OPS)
        assert ops["sdpa"]["variants"] == ["naive", "fused", "folded"]
        assert ops["linear_attention"]["variants"] == ["naive"]
        assert all(claim["dtypes"] == ["f32", "f64", "f16", "bf16"] for claim in ops.values())

    def test_bf16_keeps_every_bit(self):
        codes = np.arange(2**16, dtype=np.uint16).reshape(2, -1).view(ml_dtypes.bfloat16)
        tensor = torch_port.from_numpy(codes)
        assert tensor.dtype == torch.bfloat16
        assert torch_port.to_numpy(tensor).tobytes() == codes.tobytes()
        assert torch_port.from_numpy(codes.reshape(-1)[:1].reshape(())).shape == ()
