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
    """The function that would be compiled, as it is, on a machine that need not have a compiler."""
    monkeypatch.setattr(compiled, "can_compile", lambda: True)
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


OTHER_CALLS = {
    "q_offset": {"mask": rt.Mask(q_offset=1)},
    "window": {"mask": rt.Mask(window=(1, 1))},
    "keep": {"mask": rt.Mask(keep=torch.ones(256, dtype=torch.bool))},
    "kv_lengths": {"mask": rt.Mask(kv_lengths=torch.tensor([3]))},
    "bias": {"bias": torch.zeros(1)},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": torch.zeros(4)},
    "dropout": {"dropout": rt.Dropout(0.5, 1)},
}
OTHER_INPUTS = {"few": (16, 16), "f64": (256, 256, torch.float64), "none": (0, 256)}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_other_calls_are_refused(uncompiled, name):
    with pytest.raises(Unsupported) as caught:
        rt.sdpa_compiled(*arrays(), **OTHER_CALLS[name])
    assert caught.value.feature == "compiled"


@pytest.mark.parametrize("name", OTHER_INPUTS)
def test_other_inputs_are_refused(uncompiled, name):
    with pytest.raises(Unsupported) as caught:
        rt.sdpa_compiled(*arrays(*OTHER_INPUTS[name]))
    assert caught.value.feature == "compiled"


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.raises(Unsupported) as caught:
        rt.sdpa_compiled(*arrays())
    assert caught.value.feature == "compiled"


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
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # or the port sets it, for all tests to come
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
