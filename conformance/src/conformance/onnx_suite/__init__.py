"""The public vectors of ONNX as a suite: made from the installed `onnx` package, translated into our words.

`docs/onnx.md` has the table of how each input and attribute maps. The same translators serve `onnx_backend`.
"""

# The ops that its cases ask.
OPS = (
    *("softmax", "sdpa", "kv_cache", "rope", "cache_write"),
    *("gated_linear", "layer_norm", "rms_norm", "gelu", "swiglu"),
)
