"""A cache script under construction: steps, the tensors that they name, and the code that each must give.

Every script is replayed after a reset on the same cache, with its outputs under `again.NAME`: what was there before
must not show.
"""

from typing import Any, Self

import numpy as np

from ..inputs import Draw
from .draft import Draft, Other


class Script:
    """Steps on a cache of `batch` rows; Hq query heads attend over Hkv key/value heads."""

    def __init__(
        self,
        name: str,
        batch: int = 2,
        Hq: int = 4,
        Hkv: int = 2,
        D: int = 3,
        Dv: int = 5,
        capacity: int | None = None,
    ) -> None:
        self.name, self.batch, self.Hq, self.Hkv, self.D, self.Dv, self.capacity = (
            name,
            batch,
            Hq,
            Hkv,
            D,
            Dv,
            capacity,
        )
        self.steps: list[dict[str, Any]] = []
        self.codes: list[str] = []
        self.inputs: dict[str, Any] = {}
        self.exact: list[str] = []
        self._draw = Draw(f"kv_cache/{name}")

    def append(
        self,
        T: int,
        lengths: list[int] | None = None,
        *,
        k: Any = None,
        v: Any = None,
        code: str = "ok",
        **options: Any,
    ) -> Self:
        """T positions, random unless given; `lengths` of them count in each row. options: further fields."""
        step = {"do": "append"}
        step["k"] = self._tensor("k", self._draw.normal(self.batch, self.Hkv, T, self.D) if k is None else k)
        step["v"] = self._tensor("v", self._draw.normal(self.batch, self.Hkv, T, self.Dv) if v is None else v)
        if lengths is not None:
            step["lengths"] = self._tensor("lengths", np.array(lengths, np.int64))
        return self._step(step | self._name_tensors(options), code)

    def append_values(self, *values: float) -> Self:
        """One position a value, for a cache of one row, one head and D = Dv = 1."""
        v = np.array(values, float).reshape(1, 1, -1, 1)
        return self.append(v.shape[2], k=np.ones_like(v), v=v)

    def attend(self, Tq: int, *, q: Any = None, lse: bool = True, code: str = "ok", **options: Any) -> Self:
        """Tq queries; arrays among the options (mask, bias, q_offset) become tensors that the step names."""
        number = sum(step["do"] in ("attend", "append_attend") for step in self.steps)
        step: dict[str, Any] = {"do": "attend", "out": f"out{number}"}
        if lse:
            step["lse"] = f"lse{number}"
        step["q"] = self._tensor("q", self._draw.normal(self.batch, self.Hq, Tq, self.D) if q is None else q)
        return self._step(step | self._name_tensors(options), code)

    def attend_uniform(self, Tq: int = 1, **options: Any) -> Self:
        """Queries of 0: the output is the mean of the visible values."""
        return self.attend(Tq, q=np.zeros((self.batch, self.Hq, Tq, self.D)), **options)

    def truncate(self, *lengths: Any, code: str = "ok") -> Self:
        """Each row keeps its first positions."""
        return self._step({"do": "truncate", "lengths": list(lengths)}, code)

    def reset(self) -> Self:
        """Forget everything."""
        return self._step({"do": "reset"}, "ok")

    def read(self) -> Self:
        """Write out what is held; compared bit for bit."""
        name = f"read{sum(step['do'] == 'read' for step in self.steps)}"
        self.exact += [f"{name}.k", f"{name}.v", f"{name}.lengths"]
        return self._step({"do": "read", "out": name}, "ok")

    def draft(self, note: str, *flags: str, dtypes: tuple[str, ...] = ("f32", "f64")) -> Draft:
        """The script and its replay after a reset, as a case."""
        config = self.sizes() | {"steps": [*self.steps, {"do": "reset"}, *map(_again, self.steps)]}
        exact = (*self.exact, *(f"again.{name}" for name in self.exact))
        codes = (*self.codes, "ok", *self.codes)
        return Draft(
            f"kv_cache/{self.name}",
            "kv_cache",
            self.inputs,
            config,
            want=(),
            flags=flags,
            note=note,
            steps=codes,
            exact=exact,
            dtypes=dtypes,
        )

    def sizes(self) -> dict[str, Any]:
        """The config but for the steps."""
        return {
            "kind": "contiguous",
            "batch": self.batch,
            "num_kv_heads": self.Hkv,
            "head_dim": self.D,
            "value_dim": self.Dv,
            "capacity": self.capacity,
        }

    def _step(self, step: dict[str, Any], code: str) -> Self:
        self.steps.append(step)
        self.codes.append(code)
        return self

    def _name_tensors(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a step; an array among them becomes a tensor that the step names."""
        return {
            name: self._tensor(name, value) if isinstance(value, np.ndarray | Other) else value
            for name, value in options.items()
        }

    def _tensor(self, kind: str, value: Any) -> str:
        name = f"{kind}{sum(key.rstrip('0123456789') == kind for key in self.inputs)}"
        self.inputs[name] = value
        return name


def _again(step: dict[str, Any]) -> dict[str, Any]:
    """The same step in the replay, its outputs renamed."""
    return step | {name: f"again.{step[name]}" for name in ("out", "lse") if name in step}


def tiny(name: str, capacity: int | None = None, batch: int = 1) -> Script:
    """One head, D = Dv = 1: for scripts that a person can check by eye."""
    return Script(name, batch=batch, Hq=1, Hkv=1, D=1, Dv=1, capacity=capacity)
