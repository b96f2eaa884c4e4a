"""Which translator reads which operator of ONNX."""

from .attention import translate_attention
from .blocks import (
    translate_gelu,
    translate_layer_normalization,
    translate_rms_normalization,
    translate_swiglu,
)
from .calls import Call, Question, TranslationError, Translator
from .linear import translate_linear_attention
from .positions import translate_rotary_embedding
from .scatter import translate_tensor_scatter
from .softmax import translate_softmax

TRANSLATORS: dict[str, Translator] = {
    "Attention": translate_attention,
    "RotaryEmbedding": translate_rotary_embedding,
    "TensorScatter": translate_tensor_scatter,
    "LinearAttention": translate_linear_attention,
    "LayerNormalization": translate_layer_normalization,
    "RMSNormalization": translate_rms_normalization,
    "Gelu": translate_gelu,
    "SwiGLU": translate_swiglu,
    "Softmax": translate_softmax,
}
# The versions that they read: those that appear in ONNX's vectors. Softmax before 13 joined axes, for one.
VERSIONS: dict[str, tuple[int, ...]] = {
    "Attention": (23, 24, 25),
    "RotaryEmbedding": (23,),
    "TensorScatter": (24,),
    "LinearAttention": (27,),
    "LayerNormalization": (17,),
    "RMSNormalization": (23,),
    "Gelu": (20,),
    "SwiGLU": (28,),
    "Softmax": (13,),
}


def translate(call: Call) -> tuple[Question, ...]:
    """The questions whose answers are all of the wanted outputs. Raises TranslationError."""
    if call.operator not in TRANSLATORS:
        known = ", ".join(TRANSLATORS)
        raise TranslationError(f"operator: expected one of {known}, got {call.operator}")
    versions = VERSIONS[call.operator]
    if call.version not in versions:
        known = ", ".join(map(str, versions))
        raise TranslationError(f"{call.operator}: version: expected one of {known}, got {call.version}")
    return TRANSLATORS[call.operator](call)
