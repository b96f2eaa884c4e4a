"""The committed golden cases of the harness, as far as their files are here (`make fixtures` makes the others)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ports import ROOT, load

from rosetta_port.serve import Port

FIXTURES = ROOT / "conformance" / "fixtures"
TOLERANCE = {"f32": 1e-4, "f64": 1e-10}


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
                np.testing.assert_array_equal(x, expected[name], err_msg=name)
            else:
                self._compare(x, expected[name], name)

    def _compare(self, got: np.ndarray, want: np.ndarray, name: str) -> None:
        assert got.shape == want.shape, name
        largest = np.abs(want[np.isfinite(want)]).max(initial=0)
        looser = self.case.get("native_rtol", 1e-4) / 1e-4  # stated for f32; f64 gets the same factor
        np.testing.assert_allclose(
            got, want, rtol=0, atol=TOLERANCE[self.dtype] * looser * (1 + largest), err_msg=name
        )


def golden() -> list[Golden]:
    found = []
    for manifest in sorted(FIXTURES.glob("*/manifest.json")):
        for case in json.loads(manifest.read_text())["cases"]:
            for dtype, files in case["files"].items():
                paths = [manifest.parent / files[kind] for kind in ("inputs", "expected") if kind in files]
                if all(path.exists() for path in paths):
                    found.append(Golden(case, dtype, paths[0], paths[1] if "expected" in files else None))
    return found
