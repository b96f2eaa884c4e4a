"""The flags of the cache kinds: windows that rotate, pages, rounded values, latents, and the steps on them."""

from .case import Note

CACHE_NOTES: dict[str, Note] = {
    "RingWrap": Note(
        "a chunk longer than the window written over itself before it attends, or a ring cut by its logical length",
        "the early queries of a long prefill see late keys, or none",
        "https://github.com/ollama/ollama/pull/14912",
    ),
    "KeptSinks": Note(
        "first tokens that should stay rotated away, counted into the window, or lost at a rollback",
        "attention without its sinks: fluent text turns to noise once the window is full",
        None,
    ),
    "CopyOnWrite": Note(
        "a page that two sequences share, written to by one of them",
        "both continue with the same, wrong, text",
        "https://github.com/Avarok-Cybersecurity/atlas/issues/1193",
    ),
    "PageReuse": Note(
        "a page given back that still carries its data, or is given back while others read it",
        "tokens of a finished request in a new one",
        "https://github.com/llmmanorg/llmman/pull/118",
    ),
    "PageCount": Note(
        "a reference count off by one: pages that are never free again, or free too early",
        "the pool runs dry, or a live page is overwritten",
        "https://github.com/apache/tvm/pull/16666",
    ),
    "PrefixSharing": Note(
        "prefixes told apart by a hash that collides, by the tokens of one page alone, or by their low bits",
        "one prompt is answered from another one's cache",
        None,
    ),
    "PadSlot": Note(
        "the slot -1 of a padding token taken modulo the size: it lands in the last place of the last page",
        "padding overwrites a live token",
        "https://github.com/vllm-project/vllm/issues/43810",
    ),
    "QuantisedScale": Note(
        "a scale dropped, taken from another head or part, or divided by where it multiplies",
        "confidently wrong outputs, while every test with scale 1 passes",
        "https://github.com/flashinfer-ai/flashinfer/issues/4979",
    ),
    "ZeroGroup": Note(
        "0/0 where all of a group are equal: the scale is 0",
        "NaN, which a cast to an integer hides in some languages",
        "https://github.com/ROCm/aiter/issues/4289",
    ),
    "CodeRounding": Note(
        "ties away from even, bits cut off, a code of -128, the wrong half of a byte, a fused multiply-add",
        "codes that differ from one language to the next: a saved cache reads differently",
        None,
    ),
    "CacheAliasing": Note(
        "a cache or a prefix handed out by reference: a second user appends to the first one's",
        "a prefix grows each time that it is used",
        "https://github.com/MemTensor/MemOS/issues/2301",
    ),
    "BeamReorder": Note(
        "rows reordered in place, so that a row is read after it was overwritten",
        "beams that should differ are equal",
        None,
    ),
    "EvictedPositions": Note(
        "positions counted anew after an eviction: the next token, or the window, starts from the number of slots",
        "causal masks and rotations are off by what was evicted",
        None,
    ),
    "ShiftTurns": Note(
        "keys that keep their old rotation when their position moves, or start again from zero",
        "after a context shift every score is that of another distance",
        None,
    ),
    "LatentParts": Note(
        "the rotary part left out of the score or of the scale, or summed into the values",
        "scores or values of the wrong size in every head",
        None,
    ),
    "SavedState": Note(
        "a file without positions, counter or rounded codes: what is loaded is not what was saved",
        "generation goes on from another state",
        None,
    ),
    "ProtectedSlots": Note(
        "sinks or recent slots that are ranked with the others, or are added to the budget",
        "the first tokens go, and with them the fluency; or the cache grows beyond its budget",
        None,
    ),
    "TrackedWeights": Note(
        "weights that stay behind when slots move, begin again with every attend, or count hidden slots",
        "a heavy hitter is taken for another slot, and goes",
        None,
    ),
    "ObservedWeights": Note(
        "observing queries at other positions, without causality, or tracked as if they had attended",
        "slots are kept that later queries do not look at",
        None,
    ),
    "PooledScores": Note(
        "a pool that reaches into sinks and recent slots, or that sees one neighbour too many",
        "neighbours of a sink stay because of it",
        None,
    ),
    "SmallKeysStay": Note(
        "the largest keys kept where the smallest have the attention",
        "what is attended to goes first",
        None,
    ),
    "SumOrder": Note(
        "squares added up in pairs, exactly, or fused",
        "languages keep different slots of the same cache",
        None,
    ),
    "EvictionTies": Note(
        "a sort that is not stable, or that keeps the last of equal slots",
        "languages keep different slots of the same cache",
        None,
    ),
    "NanScore": Note(
        "NaN above every number, or a comparison with NaN that leaves the order to chance",
        "one broken slot stays for ever, and drives out the others",
        None,
    ),
    "HeadBudgets": Note(
        "one choice or one budget for all heads; a head without slots that is given the mean of its values, or NaN",
        "heads read slots that others chose; a dropped head adds noise",
        None,
    ),
    "RopeAtAttend": Note(
        "keys rotated by their slot and not by their position, or rotated although they were held rotated",
        "after an eviction every distance is wrong",
        None,
    ),
    "KeyGroups": Note(
        "keys quantised by token, or a scale that stays when the tokens of its group have changed",
        "one outlier channel takes the precision of all others",
        None,
    ),
    "GroupTail": Note(
        "a tail that is quantised before its group is full, or not at all when it is",
        "the codes depend on how the cache was fed",
        None,
    ),
}
