"""What the cases mean that stand in no manifest: checks of the protocol, relations, sentences."""

import inspect
import tempfile
from functools import cache
from pathlib import Path

from . import metamorphic, more_threads, pairs, protocol
from .minilm import similarity

PAIR = "a script on a cache, up to a save in the first port, from the load on in the second"
EVERY_KIND = ("rotating", "paged", "cross", "latent", "evict", "shift", "append_attend")
SENTENCES = {
    "embedding": "the sentence in the padded batch, embedded with the port's attention in every layer, "
    "against the package's own embedding",
    "padding": "the sentence embedded alone, without padding, against itself in the padded batch",
}


def note_of(id: str) -> str:
    """A line about the case; empty when nothing is known of it."""
    suite, _, rest = id.partition("/")
    kind = rest.partition("/")[0]
    if suite == metamorphic.SUITE:
        return _relations().get(kind, "")
    if suite == protocol.SUITE:
        return _protocol().get(kind, "")
    if suite == pairs.SUITE:
        return PAIR
    return SENTENCES.get(kind, "") if suite == similarity.SUITE else ""


def base_of(id: str) -> str:
    """The id of the case that a relation changes; empty for anything else."""
    suite, _, rest = id.partition("/")
    base = rest.partition("/")[2]
    return f"{metamorphic.OP}/{base}" if suite == metamorphic.SUITE and base else ""


@cache
def _relations() -> dict[str, str]:
    """What each relation changes, and what must follow: as the code says it."""
    notes = {relation.name: inspect.getdoc(relation.change) or "" for relation in metamorphic.RELATIONS}
    return notes | {more_threads.NAME: "The same on two and on three threads: not a bit may differ."}


@cache
def _protocol() -> dict[str, str]:
    """What each check of the protocol is about."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        checks = protocol.list_checks("sdpa", Path(folder))
        checks += protocol.list_cache_checks(EVERY_KIND, Path(folder))
        return {check.id: check.note for check in checks}
