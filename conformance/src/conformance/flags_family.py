"""Flags of linear, sparse and latent attention, of norms, activations, blocks and the cache write."""

from .case import Note

FAMILY_NOTES: dict[str, Note] = {
    "FeatureMap": Note(
        "another positive feature than elu(x) + 1, or one that is discontinuous at 0",
        "weights of another shape; nothing fails",
        None,
    ),
    "LinearNormaliser": Note(
        "numerator and denominator summed over different keys, or along another axis",
        "weights that do not sum to 1",
        "https://github.com/fla-org/flash-linear-attention/pull/594",
    ),
    "StateCarried": Note(
        "a state that is given enters the numerator alone, is not handed on, or is changed in place",
        "a sequence in parts and the same sequence whole disagree",
        "https://github.com/fla-org/flash-linear-attention/pull/268",
    ),
    "ChunkEdge": Note(
        "a chunk's own keys counted twice or not at all, or a last chunk of fewer keys",
        "right up to the chunk's size, wrong after it",
        "https://github.com/flashinfer-ai/flashinfer/pull/4311",
    ),
    "DecayOrder": Note(
        "the delta rule corrects a state that has not decayed yet, or a decay taken for a factor",
        "a state that is plausible and wrong",
        "https://github.com/fla-org/flash-linear-attention/issues/885",
    ),
    "SparsePattern": Note(
        "the list of keys that a query visits is not the set that the pattern's predicate shows",
        "too many or too few keys in some rows only",
        "https://github.com/google-research/bigbird/issues/35",
    ),
    "RandomBlocks": Note(
        "random blocks drawn from some of the blocks only, with replacement, or from another stream",
        "most far blocks are never seen, or every language sees others",
        "https://github.com/huggingface/transformers/issues/16566",
    ),
    "AbsorbedScale": Note(
        "scores scaled by the size of what is attended to, not of the key that was trained",
        "the absorbed form answers otherwise than the expanded one",
        "https://github.com/ollama/ollama/pull/13893",
    ),
    "SharedRopeKey": Note(
        "the rotary part of the key of another size, not shared by the heads, or not turned",
        "positions are lost, or in the wrong channels",
        "https://github.com/junfanz1/MiniGPT-and-DeepSeek-MLA-Multi-Head-Latent-Attention/issues/1",
    ),
    "OnePassVariance": Note(
        "the variance as mean(x²) - mean(x)²",
        "rows of a large mean come out arbitrary, or NaN",
        "https://github.com/pytorch/pytorch/issues/51102",
    ),
    "VarianceDivisor": Note(
        "the variance over n - 1, or eps outside of the root",
        "off by a little, more so for short rows",
        None,
    ),
    "GeluForm": Note(
        "GELU by tanh where the one by erf was asked for, or the reverse",
        "a model runs with another activation than it was trained with",
        "https://github.com/kyutai-labs/pocket-tts/pull/278",
    ),
    "GateOrder": Note(
        "gate and value of SwiGLU swapped",
        "the wrong half is activated",
        "https://github.com/ml-explore/mlx-lm/pull/767",
    ),
    "ResidualOrder": Note(
        "the residual taken after the norm in a pre-norm block, or the norm before the sum in a post-norm one",
        "a block of another architecture; training still works",
        "https://github.com/pytorch/pytorch/issues/61165",
    ),
    "CircularWrite": Note(
        "the wrap applied to another axis than the positions, or left out after the end",
        "one row's cache is written into another's, or the newest positions are lost",
        "https://github.com/onnx/onnx/pull/8353",
    ),
    "NegativeIndex": Note(
        "an index of -1 taken for the last slot, or for none",
        "padding overwrites the newest entry",
        "https://github.com/vllm-project/vllm/issues/43810",
    ),
}
