"""The suite `kv_cache`: prefixes that rows share because their tokens and their bits are the same."""

from collections.abc import Iterator

import numpy as np

from .cache_script import contiguous
from .caches_paged import prompts
from .draft import Draft, Other


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _shared()
    yield from _not_shared()
    yield from _failures()


def _shared() -> Iterator[Draft]:
    same = (
        prompts("prefix/same").prompt([1, 2, 3, 4, 5], [1, 2, 3, 4, 6]).stats().attend(2, causal=True).read()
    )
    yield (
        same.prompt([7], [8])
        .stats()
        .attend(1)
        .read()
        .draft("two pages of four tokens are one each, the tails stay apart", "PrefixSharing")
    )
    later = prompts("prefix/later").prompt([1, 2, 3], []).stats().prompt([], [1, 2]).stats()
    yield later.prompt([4], [3, 4]).stats().read().draft("a row that comes later joins", "PrefixSharing")
    steps = prompts("prefix/token-by-token").prompt([1, 2, 3, 4], [])
    for token in (1, 2, 3, 4, 5):
        steps.prompt([], [token]).stats()
    yield steps.attend(1).read().draft("page by page, as each becomes full", "PrefixSharing", "PageCount")
    forks = prompts("prefix/forks").prompt([1, 2, 3], [9]).fork("b").prompt([4], [9]).on("b").stats()
    yield (
        forks.prompt([4], [9])
        .stats()
        .read()
        .read(cache="b")
        .draft("a fork and its origin that go on alike meet again", "PrefixSharing", "CopyOnWrite")
    )
    freed = prompts("prefix/origin-gone").prompt([1, 2, 3], [1, 2, 4]).truncate(0, 3).stats().attend(1).read()
    yield (
        freed.prompt([5, 6], [])
        .stats()
        .read()
        .draft("the shared page lives as long as one row holds it", "PrefixSharing", "PageReuse")
    )


def _not_shared() -> Iterator[Draft]:
    """The same bits, so that nothing but the tokens tells them apart; then the same tokens."""
    for name, first, second, note in (
        ("low-byte", [65, 66], [321, 66], "65 and 321 are the same in their low byte"),
        ("low-words", [1, 2], [2**32 + 1, 2], "the same in their low 32 bits"),
        ("sign", [1, 2], [-15, 2], "a negative token"),
        ("order", [16, 32], [32, 16], "the same tokens in another order"),
        ("sum", [16, 48], [32, 32], "the same sum"),
        ("earlier", [1, 2, 3, 4], [17, 2, 3, 4], "the same page after another page"),
        ("joined", [1, 71234], [17, 1234], "digits that join alike"),
    ):
        script = prompts(f"prefix/other-tokens/{name}").prompt(first, second).stats().attend(1).read()
        yield script.draft(f"equal keys and values, other tokens: {note}", "PrefixSharing")
    bits = prompts("prefix/other-bits", batch=1).prompt([1, 2, 3]).fork("b").reset().prompt([1, 2, 3], salt=1)
    yield bits.stats().read().read(cache="b").draft("the same tokens, other keys", "PrefixSharing")
    zero = prompts("prefix/zero-sign")
    k, v = np.zeros((2, 2, 2, 3)), np.zeros((2, 2, 2, 5))
    k[1] = -0.0
    yield (
        zero.append(2, k=k, v=v, tokens=np.ones((2, 2), np.int64))
        .stats()
        .read()
        .draft("0 and -0 are not the same bits", "PrefixSharing")
    )
    gap = prompts("prefix/unknown").prompt([1], [1], unknown=True).prompt([2, 3, 4], [2, 3, 4]).stats()
    yield gap.read().draft("a token that was not named hides all after it", "PrefixSharing")
    without = prompts("prefix/no-tokens").prompt([1, 2], [1, 2], unknown=True).stats().read()
    yield without.draft("no tokens, nothing shared", "PrefixSharing")
    rewritten = prompts("prefix/rewritten", batch=3).prompt([1, 2, 3], [], []).truncate(1, 0, 0)
    yield (
        rewritten.prompt([5], [], [])
        .prompt([], [1, 2], [1, 5])
        .stats()
        .read()
        .draft(
            "a page that was cut and written anew is known by its new tokens only",
            "PrefixSharing",
            "Rollback",
        )
    )


def _failures() -> Iterator[Draft]:
    tokens = np.ones((2, 2), np.int64)
    for name, given, code in (
        ("shape", np.ones((2, 3), np.int64), "shape_mismatch"),
        ("rank", np.ones(2, np.int64), "shape_mismatch"),
        ("float", np.ones((2, 2)), "dtype_mismatch"),
        ("type", Other(np.ones((2, 2))), "dtype_mismatch"),
    ):
        script = prompts(f"prefix/failure/{name}").prompt([1, 2], [3, 4]).append(2, tokens=given, code=code)
        yield script.stats().read().draft(f"tokens: {name}", "ErrorCode", "NothingChanged")
    other = contiguous("prefix/failure/contiguous").append(2).append(2, tokens=tokens, code="invalid_config")
    yield other.read().draft("only a paged cache takes tokens", "ErrorCode", "NothingChanged")
    needed = prompts("prefix/failure/exhausted", num_pages=3).prompt([1, 2], [1, 2]).stats()
    yield (
        needed.append(4, tokens=np.ones((2, 4), np.int64), code="capacity_exceeded")
        .prompt([3, 4], [3, 4], code="ok")
        .stats()
        .read()
        .draft("pages are taken before they can be shared", "Capacity", "PrefixSharing")
    )
