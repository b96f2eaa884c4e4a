"""The committed golden cases of the harness, as far as their files are here (`make fixtures` makes the others)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ports import ROOT, load

from rosetta_attention.cast import NAMES, narrow, widen
from rosetta_port.serve import Port

FIXTURES = ROOT / "conformance" / "fixtures"
# Of |got - want| / (1 + max |want|): what the types take over a whole case, for halves the eps of their one rounding.
TOLERANCE = {"f32": 1e-4, "f64": 1e-9, "f16": 1e-3, "bf16": 8e-3}


@dataclass(frozen=True)
class Golden:
    """A case of a manifest in one of its dtypes."""

    case: dict[str, Any]
    dtype: str
    inputs: Path
    expected: Path | None  # None for a case that must fail

    @property
    def id(self) -> str:
        return f"{self.case['id']}-{self.dtype}"

    @property
    def tolerance(self) -> float:
        """That of the type, or the wider one that the manifest derives for f32, less the eps of a half type in it."""
        eps = max((TOLERANCE[half] for half in ("f16", "bf16") if half in self.case["files"]), default=0)
        stated = self.case.get("native_rtol", 0) - eps
        return TOLERANCE[self.dtype] if self.dtype == "f64" else max(TOLERANCE[self.dtype], stated)

    def claimed(self, ops: dict[str, Any]) -> bool:
        """Whether a port with these claims has all that the case needs."""
        claims = ops.get(self.case["op"], {"dtypes": [], "features": []})
        return self.dtype in claims["dtypes"] and set(self.case.get("features", [])) <= set(
            claims["features"]
        )

    def run(self, port: Port, outputs: Path, **fields: Any) -> dict[str, Any]:
        request = {name: self.case[name] for name in ("op", "config", "want") if name in self.case}
        request |= {"cmd": "run", "inputs": str(self.inputs), "outputs": str(outputs)} | fields
        return port.answer(json.dumps(request).encode())

    def check(self, outputs: Path, *, want: list[str] | None = None) -> None:
        """Every tensor of the file, or those of `want`, against the expected ones."""
        assert self.expected is not None
        got, expected = load(outputs), load(self.expected)
        assert sorted(got) == sorted(expected if want is None else want)
        for name, x in got.items():
            if name in self.case.get("exact", []):
                with np.errstate(invalid="ignore"):  # NaN with a payload
                    wanted = expected[name].astype(x.dtype)
                np.testing.assert_array_equal(wide(x), wide(wanted), err_msg=name)
            else:
                self._compare(x, expected[name], name)

    def _compare(self, got: np.ndarray, want: np.ndarray, name: str) -> None:
        assert got.shape == want.shape, name
        got, want = wide(got), wide(narrow(want, NAMES[got.dtype]) if got.dtype in NAMES else want)
        largest = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(got, want, rtol=0, atol=self.tolerance * (1 + largest), err_msg=name)


def wide(x: np.ndarray) -> np.ndarray:
    """Halves in f32, where NumPy knows that NaN is NaN."""
    return widen(x) if x.dtype in NAMES else x


def golden() -> list[Golden]:
    found = []
    for manifest in sorted(FIXTURES.glob("*/manifest.json")):
        for case in json.loads(manifest.read_text())["cases"]:
            for dtype, files in case["files"].items():
                paths = [manifest.parent / files[kind] for kind in ("inputs", "expected") if kind in files]
                if all(path.exists() for path in paths):
                    found.append(Golden(case, dtype, paths[0], paths[1] if "expected" in files else None))
    return found
