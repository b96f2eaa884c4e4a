"""`compiled`, which is not in every run: what it refuses before anything is compiled, and that it answers rightly."""

import numpy as np
import pytest
from ports import Driver

from rosetta_attention.errors import InvalidConfig, ShapeMismatch, Unsupported

torch = pytest.importorskip("torch")

import rosetta_attention.torch as rt  # noqa: E402
from rosetta_attention.torch import compiled  # noqa: E402
from rosetta_port import torch_port  # noqa: E402


def arrays(Tq=256, Tk=256, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, Tq, 16), (1, 2, Tk, 16), (1, 2, Tk, 8))
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


@pytest.fixture
def uncompiled(monkeypatch):
    """The function that would be compiled, as it is."""
    monkeypatch.setattr(compiled, "_compiled", lambda: compiled._attend)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.0, -0.5])
def test_what_is_compiled_is_sdpa(uncompiled, causal, scale):
    q, k, v = arrays()
    mask = rt.Mask(causal=causal)
    got = rt.sdpa_compiled(q, k, v, mask=mask, scale=scale)
    want = rt.sdpa_steps(q, k, v, mask=mask, scale=scale)
    assert torch.equal(got.output, want.output)
    assert torch.equal(got.lse, want.lse)


@pytest.mark.parametrize(
    "call",
    [
        {"mask": rt.Mask(q_offset=1)},
        {"mask": rt.Mask(window=(1, 1))},
        {"mask": rt.Mask(keep=torch.ones(256, dtype=torch.bool))},
        {"mask": rt.Mask(kv_lengths=torch.tensor([3]))},
        {"bias": torch.zeros(1)},
        {"softcap": 2.0},
        {"sinks": torch.zeros(4)},
        {"dropout": rt.Dropout(0.5, 1)},
    ],
    ids=str,
)
def test_other_calls_are_refused(uncompiled, call):
    with pytest.raises(Unsupported) as caught:
        rt.sdpa_compiled(*arrays(), **call)
    assert caught.value.feature == "compiled"


@pytest.mark.parametrize("inputs", [arrays(16, 16), arrays(dtype=torch.float64), arrays(0, 256)], ids=str)
def test_other_inputs_are_refused(uncompiled, inputs):
    with pytest.raises(Unsupported):
        rt.sdpa_compiled(*inputs)


def test_without_a_compiler(uncompiled, monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.raises(Unsupported):
        rt.sdpa_compiled(*arrays())


def test_errors_come_before_refusals(uncompiled):
    q, k, v = arrays(16, 16)
    with pytest.raises(ShapeMismatch):
        rt.sdpa_compiled(q, k[..., :3], v)
    with pytest.raises(InvalidConfig):
        rt.sdpa_compiled(q, k, v, softcap=-1.0)


def test_what_is_not_finite_is_refused(uncompiled):
    q, k, v = arrays()
    v[..., 200, :] = np.nan
    with pytest.raises(Unsupported) as caught:
        rt.sdpa_compiled(q, k, v, mask=rt.Mask(causal=True))
    assert caught.value.feature == "nonfinite"


def test_the_port_has_it_where_it_is_wanted(monkeypatch, tmp_path):
    monkeypatch.delenv("ROSETTA_TORCH_COMPILED", raising=False)
    assert torch_port.bench_variants() == {}
    monkeypatch.setenv("ROSETTA_TORCH_COMPILED", "1")
    assert list(torch_port.bench_variants()) == (["compiled"] if compiled.can_compile() else [])
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    assert torch_port.bench_variants() == {}
    q, k, v = (x.numpy() for x in arrays())
    driver = Driver(torch_port.LIBRARY, tmp_path)
    answer = driver.run("sdpa", {"q": q, "k": k, "v": v}, variant="compiled")
    assert (answer["status"], answer["feature"]) == ("unsupported", "variant.compiled")
