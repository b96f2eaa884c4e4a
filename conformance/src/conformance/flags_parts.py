"""The flags of half types, dropout, positions, partial attention, other scores, and the layer's later options."""

from .case import Note

PART_NOTES: dict[str, Note] = {
    "HalfRounding": Note(
        "f64 narrowed to a half by way of f32, ties away from even, bits cut off, subnormals flushed",
        "one unit off in a few values, a systematic drift in many",
        "https://github.com/halide/Halide/pull/8906",
    ),
    "HalfInside": Note(
        "arithmetic in the half type itself, or a rounding between two steps",
        "errors far larger than the one rounding of the result",
        "https://github.com/pytorch/pytorch/pull/60940",
    ),
    "DropoutMask": Note(
        "another order of the counter's words, of the key's, or of the four words of a block; 64 bits cut to 32",
        "each language drops other elements; long runs repeat themselves",
        "https://github.com/JuliaRandom/Random123.jl/issues/5",
    ),
    "DropoutScale": Note(
        "what stays not divided by 1 - p, weights normalised again, or dropout without being asked",
        "training and evaluation see different sizes; evaluation is random",
        "https://github.com/pytorch/pytorch/issues/124464",
    ),
    "RopePairing": Note(
        "channel i paired with i + 1 where the weights expect i + R/2, or the reverse, or half of each",
        "the first token is right, quality decays with position",
        "https://github.com/NeuraLegion/shainet/pull/111",
    ),
    "RopePosition": Note(
        "a new token at position 0, keys turned twice, one row's positions used for another",
        "cached decoding disagrees with one pass over all",
        "https://github.com/huggingface/transformers/pull/22416",
    ),
    "RopePartial": Note(
        "frequencies or pairs taken from D where the rotary dimension is smaller; the rest not passed through",
        "every channel but the first pair turns at the wrong speed",
        "https://github.com/EleutherAI/gpt-neox/issues/1003",
    ),
    "RopeScaling": Note(
        "a scaling read and not applied, its blend inverted, its attention factor forgotten or not overridden",
        "short contexts look right, long ones fall apart",
        "https://github.com/ml-explore/mlx-lm/pull/1507",
    ),
    "AnglePrecision": Note(
        "position times frequency rounded before the sine: bf16 holds no whole number above 256 for certain",
        "tables wrong at some pairs of position and channel",
        "https://github.com/EleutherAI/gpt-neox/issues/1003",
    ),
    "AlibiSlopes": Note(
        "a plain geometric series where the number of heads is no power of two; the exponent off by one",
        "heads forget at other speeds than they were trained with",
        "https://github.com/ml-explore/mlx/issues/343",
    ),
    "RelativeBuckets": Note(
        "query minus key, linear buckets all the way, or a logarithm that falls short of a whole number",
        "biases of other distances",
        "https://github.com/huggingface/candle/pull/727",
    ),
    "HiddenTile": Note(
        "a running maximum of -inf subtracted from itself where a whole tile is hidden before the first visible key",
        "NaN in rows whose first keys are masked",
        "https://github.com/pytorch/pytorch/issues/103749",
    ),
    "EmptyState": Note(
        "a partial result without keys read all the same when two are merged",
        "NaN, or zeros that weigh in",
        "https://github.com/Dao-AILab/flash-attention/issues/1778",
    ),
    "SequenceLeak": Note(
        "packed sequences that see each other, or are placed by another one's boundaries",
        "texts bleed into their neighbours",
        "https://github.com/Tencent-Hunyuan/HunyuanVideo/pull/310",
    ),
    "ScoreForm": Note(
        "one form of score for another: a scale too many or too few, a transposed weight, a tanh of each projection",
        "attention that is plausible and wrong",
        None,
    ),
    "PackedLayout": Note(
        "one packed projection cut in the other of its two layouts: all q, then k, then v; or a group after the other",
        "queries taken for keys in every head but one",
        "https://github.com/awslabs/slapo/pull/46",
    ),
    "HeadMask": Note(
        "a head mask with the other meaning, or a pruned head multiplied in with 0",
        "the wrong heads are silent; NaN leaks from those that should be",
        "https://github.com/pytorch/pytorch/issues/101967",
    ),
    "QkNorm": Note(
        "the norm over all heads at once, after the rotation, or with one weight for queries and keys",
        "scores of another size in each head",
        None,
    ),
}
