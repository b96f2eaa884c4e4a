"""The attention vectors of the onnx package, in our words.

ONNX's operator and our functions have the same semantics under other names: `attn_mask` is a mask or a bias by its
type, `past_key` a cache that was filled before, `nonpad_kv_seqlen` the lengths of one that the caller keeps.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from backends import Backend
from onnx import helper
from onnx.backend.test.case import node
from problems import Problem

from rosetta_attention import Steps

MODES = ("scores", "capped", "biased", "weights")

# Inputs are in [0, 1): a dozen roundings of float32 on either side; ONNX's own halves are rounded on the way.
TOLERANCE = {"rtol": 2e-6, "atol": 1e-6}
OF_HALVES = {"float16": {"rtol": 4e-3, "atol": 1e-3}, "bfloat16": {"rtol": 3e-2, "atol": 8e-3}}


@dataclass
class Vector:
    """One call of ONNX's Attention in our words."""

    name: str
    attributes: dict[str, Any]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]

    def heads(self, name: str) -> np.ndarray:
        """Q, K or V as (B, H, T, n); rank 3 is (B, T, H·n)."""
        x = self.inputs[name]
        heads = self.attributes.get("q_num_heads" if name == "Q" else "kv_num_heads")
        return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    @property
    def past(self) -> int:
        return self.inputs["past_key"].shape[2] if "past_key" in self.inputs else 0

    def problem(self) -> Problem:
        """The call over all keys, past ones included."""
        q, k, v = (self.heads(name) for name in "QKV")
        if self.past:
            k, v = (
                np.concatenate([self.inputs[f"past_{n}"], x], axis=2) for n, x in (("key", k), ("value", v))
            )
        options = {name: self.attributes[name] for name in ("scale", "softcap") if name in self.attributes}
        sides = [self.attributes.get(f"{side}_window_size", -1) for side in ("left", "right")]
        mask = {
            "causal": self.attributes.get("is_causal") == 1,
            "window": tuple(None if side < 0 else side for side in sides),
            "q_offset": self.past,
        }
        if "nonpad_kv_seqlen" in self.inputs:
            mask["kv_lengths"] = self.inputs["nonpad_kv_seqlen"]
            mask["q_offset"] = mask["kv_lengths"] - q.shape[2]
        table = self.inputs.get("attn_mask")
        if table is not None:  # what it is too short for is hidden
            missing = [(0, 0)] * (table.ndim - 1) + [(0, k.shape[2] - table.shape[-1])]
            if table.dtype == bool:
                mask["keep"] = np.pad(table, missing)
            else:
                options["bias"] = np.pad(table, missing, constant_values=-np.inf)
        return Problem(q, k, v, mask, options)

    def check(self, lib: Backend, steps: Steps, mask: dict[str, Any]) -> None:
        output, matrix = steps.output, getattr(steps, MODES[self.attributes.get("qk_matmul_output_mode", 0)])
        if self.attributes.get("qk_matmul_output_mode") == 2:  # ONNX's bias has the causal mask in it
            shown = lib.to_numpy(lib.api.visible(lib.mask(**mask), *matrix.shape))
            matrix = np.where(shown, matrix, -np.inf)
        self.check_output(output)
        if "qk_matmul_output" in self.outputs:
            self._close(matrix, self.outputs["qk_matmul_output"])

    def check_output(self, output: np.ndarray) -> None:
        want = self.outputs["Y"]
        if want.ndim == 3:
            output = output.swapaxes(1, 2).reshape(want.shape)
        assert output.dtype == want.dtype
        self._close(output, want)

    def _close(self, got: np.ndarray, want: np.ndarray) -> None:
        tolerance = OF_HALVES.get(str(want.dtype), TOLERANCE)
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), **tolerance)


def vectors() -> list[Vector]:
    """Of one operator only: `collect_testcases` would make those of all others first, which takes ten seconds."""
    node._TargetOpType = "Attention"
    importlib.import_module("onnx.backend.test.case.node.attention")
    found = []
    for case in node._NodeTestCases:
        op = case.model.graph.node[0]
        (inputs, outputs), *_ = case.data_sets
        expanded = len(case.model.graph.node) > 1  # the same case again, in primitive operators
        if not expanded:
            attributes = {a.name: helper.get_attribute_value(a) for a in op.attribute}
            named = (
                dict(zip(filter(None, names), x, strict=True))
                for names, x in ((op.input, inputs), (op.output, outputs))
            )
            found.append(Vector(case.name.removeprefix("test_attention_"), attributes, *named))
    return found


EVERY = vectors()
VECTORS = [vector for vector in EVERY if vector.inputs["Q"].dtype == np.float32]
HALVES = [vector for vector in EVERY if vector.inputs["Q"].dtype != np.float32]
