"""What the flags of the cases mean: the kind of bug, what it does, and a public report where there is one."""

from .case import Note
from .flags_caches import CACHE_NOTES
from .flags_family import FAMILY_NOTES
from .flags_parts import PART_NOTES

NOTES: dict[str, Note] = {
    "ByHand": Note("an error in the plain formula", "every result is wrong", None),
    "FullyMaskedRow": Note(
        "softmax over a row without a visible key computes -inf - -inf, or averages over all keys",
        "NaN spreads through the batch, or padding gets the mean of V",
        "https://github.com/pytorch/pytorch/issues/103749",
    ),
    "ChunkedPrefill": Note(
        "a square causal mask for a chunk that comes after a filled cache",
        "one-token decode and one-shot prefill look fine, anything between is wrong",
        "https://github.com/meta-llama/llama/issues/899",
    ),
    "CausalAlignment": Note(
        "the other corner: causal aligned bottom-right where top-left was asked, or the reverse",
        "with Tq != Tk every query sees the wrong keys",
        "https://github.com/ml-explore/mlx/issues/2835",
    ),
    "AxisOrder": Note(
        "row-major bytes read as column-major, or axes swapped where sizes are equal",
        "right shapes, scrambled contents",
        "https://github.com/JuliaIO/HDF5.jl/issues/785",
    ),
    "SoftcapOrder": Note(
        "softcap after the mask (or the scale after the softcap): tanh makes -inf finite",
        "hidden keys receive real weight",
        "https://github.com/onnx/onnx/issues/7865",
    ),
    "WindowOffByOne": Note(
        "the query itself counted in, or left out of, the window; one side open where it should be closed",
        "one key too many or too few",
        "https://github.com/huggingface/transformers/issues/39408",
    ),
    "WindowBoundary": Note(
        "a key lost when the length becomes exactly the window",
        "decode and prefill disagree from the window's length on",
        "https://github.com/huggingface/transformers/issues/37574",
    ),
    "GqaTile": Note(
        "KV heads tiled (0, 1, 0, 1) where each should serve consecutive query heads (0, 0, 1, 1)",
        "most query heads read another head's keys",
        "https://github.com/onnx/onnx/pull/7274",
    ),
    "MaskPolarity": Note(
        "a boolean mask read as True = ignore, or added as 0 and 1",
        "attention sees only what it should not, or the mask does nearly nothing",
        "https://github.com/rasbt/LLMs-from-scratch/issues/1061",
    ),
    "MaskComposition": Note(
        "one condition vanishes when another is given, or depends on whether weights are asked for",
        "a causal mask, a window or a length is silently ignored",
        "https://github.com/keras-team/keras/issues/23038",
    ),
    "MaskBroadcast": Note(
        "a mask or bias of lower rank aligned to the left, or rank 3 taken as (B, Tq, Tk)",
        "heads and rows get each other's masks",
        "https://onnx.ai/onnx/operators/onnx__Attention.html",
    ),
    "VectorTail": Note(
        "the remainder after the last whole vector or tile dropped, read twice, or read past the end",
        "wrong only for sizes that are no multiple of the width",
        "https://github.com/66RING/tiny-flash-attention/issues/12",
    ),
    "EmptyKeys": Note(
        "sizes of 0, or queries without any key",
        "0/0, an exception from the maximum of nothing, or a wrong shape",
        "https://github.com/Dao-AILab/flash-attention/issues/1778",
    ),
    "LseNatural": Note(
        "the log-sum-exp in base 2, or without the maximum",
        "a merge of partial results is silently off",
        "https://github.com/sgl-project/sglang/issues/40903",
    ),
    "Rollback": Note(
        "reset where rollback was meant, or rejected tokens kept",
        "speculative decoding loses or scrambles its past",
        "https://github.com/paiml/aprender/pull/2014",
    ),
    "StaleReset": Note(
        "a cache that keeps its length, or its contents, over a reset",
        "zeros or old tokens take part in the next sequence",
        "https://github.com/huggingface/transformers/pull/48809",
    ),
    "AbsentIsNotZero": Note(
        "an explicit 0 replaced by the default because it is falsy, or the default used as 0",
        "attention silently uniform, or silently scaled",
        "https://github.com/SKaiNET-developers/SKaiNET/issues/860",
    ),
    "ValueDim": Note(
        "one head size for keys and values",
        "output of the wrong shape, or scaled by 1/sqrt(Dv)",
        "https://github.com/ggml-org/llama.cpp/pull/7327",
    ),
    "Overflow": Note(
        "exp without subtracting the maximum, a maximum that starts at 0, or a sum that overflows before it is scaled",
        "Inf or NaN from finite inputs",
        "https://github.com/pytorch/pytorch/pull/60940",
    ),
    "InfiniteScore": Note(
        "+inf among the visible scores treated as a large number",
        "a confident answer where there is none",
        "https://github.com/FluxML/NNlib.jl/issues/206",
    ),
    "HiddenPoison": Note(
        "0 · NaN: hidden keys or values multiplied in with weight 0",
        "garbage in padding or in stale cache slots leaks into the result",
        "https://github.com/pytorch/pytorch/issues/101967",
    ),
    "VisibleNaN": Note(
        "NaN swallowed by a maximum or a comparison",
        "a broken input gives a plausible answer",
        "https://github.com/FluxML/NNlib.jl/issues/206",
    ),
    "BiasIsNotMask": Note(
        "a float bias read as a mask, a finite sentinel as -inf, or a bias broadcast away at decode",
        "the bias does nothing, or hides what it should only weaken",
        "https://github.com/keras-team/keras-hub/issues/2861",
    ),
    "Sink": Note(
        "a sink logit left out of the maximum, of the sum or of the lse, or given a value",
        "weights that sum to 1 where they must not; overflow for a large sink",
        "https://github.com/Dao-AILab/flash-attention/issues/1797",
    ),
    "FileLayout": Note(
        "a header length that is no multiple of 8, a scalar, an empty tensor, tensors out of order",
        "shifted numbers or a range error",
        "https://github.com/safetensors/safetensors/issues/231",
    ),
    "Subnormal": Note(
        "flush-to-zero switched on for the process",
        "the smallest numbers become 0",
        "https://github.com/symengine/symengine/issues/1453",
    ),
    "LeftPadding": Note(
        "positions counted from the padding, or padding not hidden",
        "every row but the longest is silently wrong",
        "https://github.com/ndif-team/nnsight/pull/673",
    ),
    "HeadReshape": Note(
        "a reshape where a transpose must come first, in the split or the merge of heads",
        "heads and tokens mixed; training still works",
        "https://github.com/jsbaan/transformer-from-scratch/pull/6",
    ),
    "RowIndependence": Note(
        "one row's length, offset or emptiness used for another",
        "a result depends on its neighbours in the batch",
        "https://github.com/huggingface/transformers/issues/25420",
    ),
    "CrossAttention": Note(
        "the context windowed, masked causally or projected with x's width",
        "decoders see only a part of the encoder",
        "https://github.com/huggingface/transformers/pull/41890",
    ),
    "Shift": Note(
        "a constant added to a whole row of scores changes the result",
        "biases leak into weights",
        "https://github.com/vllm-project/vllm/pull/945",
    ),
    "NothingChanged": Note(
        "a failed call that has already written, grown or advanced",
        "the cache is wrong after the caller has handled the error",
        None,
    ),
    "Capacity": Note(
        "a fixed cache that grows, wraps or writes past its end", "memory or the oldest tokens are lost", None
    ),
    "ErrorCode": Note(
        "bad input accepted, or refused with a code of another kind",
        "callers cannot tell what went wrong",
        None,
    ),
    "Published": Note(
        "whatever our own cases do not think of, or think of in our own way",
        "a port that disagrees with the vectors by which the field is measured",
        "https://onnx.ai/onnx/operators/onnx__Attention.html",
    ),
    "Real": Note("whatever synthetic inputs do not show", "a real model's embeddings change", None),
    "Bench": Note("a shape of the speed table", "a wrong result would be timed", None),
    **FAMILY_NOTES,
    **PART_NOTES,
    **CACHE_NOTES,
}
