"""The embeddings that the package itself computes, kept as a small file.

    python -m conformance.minilm.golden            says how far a new computation is from the file
    python -m conformance.minilm.golden --write    makes the file

The package runs its model through sentence-transformers and torch (requirements/minilm-reference.txt). Who
compares ports needs neither: twelve vectors are committed, with the hash of the sentences and the versions
that made them.
"""

import importlib.metadata
import importlib.util
import json
import os
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from ..repository import ROOT
from .sentences import MODULE, PACKAGE, SENTENCES, package_version, sentences_sha256

GOLDEN = ROOT / "conformance/fixtures/minilm/golden.safetensors"
COMMAND = "python -m conformance.minilm.golden --write"


def read_golden() -> np.ndarray:
    """The committed embeddings: (12, 384) float32. Raises ValueError when it is of other sentences."""
    with safe_open(GOLDEN, framework="numpy") as file:
        origin = json.loads(file.metadata()["origin"])
        embeddings: np.ndarray = file.get_tensor("embeddings")
    for what, now in (("sentences", sentences_sha256()), (PACKAGE, package_version())):
        if origin[what] != now:
            raise ValueError(
                f"{GOLDEN.name}: {what}: expected {now}, got {origin[what]}; make it anew: {COMMAND}"
            )
    return embeddings


def compute_golden() -> np.ndarray:
    """The embeddings by the package's own runtime, in one batch: (12, 384) float32. Takes ten seconds."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # all that is needed is in the package
    package = importlib.import_module(MODULE)
    embeddings = package.load_model("cpu").encode([text for _, text in SENTENCES])
    return np.asarray(embeddings, dtype=np.float32)


def write_golden(embeddings: np.ndarray) -> None:
    """Writes the file. Its origin is one metadata key: the order of several would change from run to run."""
    versions = {
        name: importlib.metadata.version(name) for name in ("sentence-transformers", "torch", PACKAGE)
    }
    origin = {"command": COMMAND, "sentences": sentences_sha256(), **versions}
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_bytes(save({"embeddings": embeddings}, {"origin": json.dumps(origin, sort_keys=True)}))


def main() -> None:
    """Computes the embeddings anew; writes or compares them."""
    embeddings = compute_golden()
    if "--write" in sys.argv:
        write_golden(embeddings)
    print(f"largest difference from {GOLDEN.name}: {np.abs(embeddings - read_golden()).max():.1e}")


if __name__ == "__main__":
    main()
