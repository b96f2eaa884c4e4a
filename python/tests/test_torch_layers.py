"""Layers of torch.nn with their own weights beside ours: attention, blocks, norms; and masks the other way round."""

import numpy as np
import pytest
from values import normal

import rosetta_attention as ra

torch = pytest.importorskip("torch")
nn = torch.nn


def arrays(module):
    return {name: x.detach().numpy() for name, x in module.state_dict().items()}


def module(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64, **options)


ATTN_MASK = np.triu(np.ones((3, 5), bool), 2)  # True = ignore
PADDING = np.array([[False, False, False, False, True], [False, True, False, True, True]])


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 6, "vdim": 6}], ids=str)
@pytest.mark.parametrize("masks", [(None, None), (ATTN_MASK, None), (None, PADDING), (ATTN_MASK, PADDING)])
def test_multihead_attention(options, masks):
    theirs = module(**options)
    x, context = normal(2, 3, 8), normal(2, 5, options.get("kdim", 8), seed=1)
    attn_mask, padding = (None if mask is None else torch.from_numpy(mask) for mask in masks)
    want, weights = theirs(
        *(torch.from_numpy(array) for array in (x, context, context)),
        attn_mask=attn_mask,
        key_padding_mask=padding,
    )
    layer = ra.from_torch_state_dict(arrays(theirs), 2)
    got = layer.steps(x, context, mask=ra.Mask(keep=ra.keep_from_torch(*masks, 2)))
    np.testing.assert_allclose(got.output, want.detach().numpy(), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(got.mean_weights, weights.detach().numpy(), rtol=1e-10, atol=1e-13)


def test_a_mask_for_each_head():
    theirs, x = module(), normal(2, 4, 8)
    ignore = np.random.default_rng(5).random((4, 4, 4)) < 0.3
    ignore[:, range(4), range(4)] = False
    tensor = torch.from_numpy(x)
    want, weights = theirs(
        tensor, tensor, tensor, attn_mask=torch.from_numpy(ignore), average_attn_weights=False
    )
    layer = ra.from_torch_state_dict(arrays(theirs), 2)
    got = layer.steps(x, mask=ra.Mask(keep=ra.keep_from_torch(ignore, None, 2)))
    np.testing.assert_allclose(got.output, want.detach().numpy(), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(got.weights, weights.detach().numpy(), rtol=1e-10, atol=1e-13)


def test_polarity():
    """MaskPolarity: True means ignore there and attend here."""
    assert ra.keep_from_torch(np.array([[True, False]]), None, 1).tolist() == [[False, True]]
    assert ra.keep_from_torch(None, np.array([[True, False]]), 1).tolist() == [[[[False, True]]]]
    assert ra.keep_from_torch(None, None, 1) is None
    with pytest.raises(ra.DtypeMismatch, match="keep_from_torch: attn_mask: expected bool"):
        ra.keep_from_torch(np.zeros((2, 2)), None, 1)


def test_refusals():
    with pytest.raises(ra.Unsupported, match="bias_k"):
        ra.from_torch_state_dict(arrays(module(add_bias_kv=True)), 2)
    with pytest.raises(ra.InvalidConfig, match=r"from_torch_state_dict: out_proj.weight: expected"):
        ra.from_torch_state_dict({}, 2)
    weights = arrays(module())
    for name, wrong in (
        ("in_proj_weight", np.zeros((25, 8))),
        ("in_proj_weight", np.zeros(24)),
        ("in_proj_bias", np.zeros(25)),
        ("in_proj_bias", np.zeros(())),
    ):
        with pytest.raises(ra.ShapeMismatch, match=f"from_torch_state_dict: {name}: expected"):
            ra.from_torch_state_dict(weights | {name: wrong}, 2)


@pytest.mark.parametrize(
    ("argument", "attn", "padding"),
    [
        ("attn_mask", (3, 3, 5), None),
        ("attn_mask", (5,), None),
        ("key_padding_mask", None, (5,)),
        ("key_padding_mask", (3, 5), (2, 4)),
        ("key_padding_mask", (4, 3, 5), (3, 5)),
    ],
    ids=str,
)
def test_masks_of_wrong_shapes(argument, attn, padding):
    masks = (None if shape is None else np.zeros(shape, bool) for shape in (attn, padding))
    with pytest.raises(ra.ShapeMismatch, match=f"keep_from_torch: {argument}: expected"):
        ra.keep_from_torch(*masks, 2)


def test_masks_of_no_heads():
    with pytest.raises(ra.InvalidConfig, match="keep_from_torch: num_heads: expected"):
        ra.keep_from_torch(None, None, 0)


def block_of(theirs, *, cross):
    w = arrays(theirs)
    below = lambda prefix: {name[len(prefix) :]: x for name, x in w.items() if name.startswith(prefix)}  # noqa: E731
    norms = [ra.Norm(w[f"norm{n}.weight"], w[f"norm{n}.bias"]) for n in (1, 2, 3) if f"norm{n}.weight" in w]
    ff = (w["linear1.weight"], w["linear2.weight"], w["linear1.bias"], w["linear2.bias"])
    return ra.Block(
        ra.from_torch_state_dict(below("self_attn."), 2),
        ra.FeedForward(*ff, activation="relu"),
        *norms[:2],
        cross=ra.from_torch_state_dict(below("multihead_attn."), 2) if cross else None,
        norm_3=norms[2] if cross else None,
        norm_first=theirs.norm_first if hasattr(theirs, "norm_first") else False,
    )


@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_and_decoder_layers(norm_first):
    torch.manual_seed(1)
    options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first, "dtype": torch.float64}
    encoder = nn.TransformerEncoderLayer(8, 2, 16, **options).train()
    decoder = nn.TransformerDecoderLayer(8, 2, 16, **options).train()
    x, context = normal(2, 4, 8), normal(2, 5, 8, seed=1)
    want = encoder(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(block_of(encoder, cross=False)(x), want, rtol=1e-9, atol=1e-12)
    causal = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    want = decoder(torch.from_numpy(x), torch.from_numpy(context), tgt_mask=causal).detach().numpy()
    got = block_of(decoder, cross=True)(x, context, causal=True)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_norms_and_activations():
    x, w, b = normal(3, 7), normal(7, seed=1), normal(7, seed=2)
    tensors = [torch.from_numpy(array) for array in (x, w, b)]
    f = nn.functional
    for got, want in (
        (ra.layer_norm(x, w, b), f.layer_norm(tensors[0], (7,), *tensors[1:])),
        (ra.rms_norm(x, w, eps=1e-5), f.rms_norm(tensors[0], (7,), tensors[1], eps=1e-5)),
        (ra.gelu(x), f.gelu(tensors[0])),
        (ra.gelu(x, approximate="tanh"), f.gelu(tensors[0], approximate="tanh")),
        (ra.swiglu(x, x), f.silu(tensors[0]) * tensors[0]),
    ):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("to", ["f16", "bf16"])
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_casts(to, wide):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(20000) * np.exp2(rng.integers(-30, 17, 20000))).astype(wide)
    kind = torch.float16 if to == "f16" else torch.bfloat16
    want = torch.from_numpy(x).to(kind).to(torch.float32).numpy()
    got = ra.widen(ra.cast(x, to))
    if wide == np.float64:
        assert np.mean(got != want) < 1e-4  # torch goes by f32 and rounds twice
    else:
        np.testing.assert_array_equal(got, want)
