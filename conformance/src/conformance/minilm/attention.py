"""A port as the attention of the encoder: every call is one `run` of its mha over the protocol."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from ..outcome import Difference, Judgement, Outcome
from ..session import PortFault, Session, StartAnswer
from ..tensors import Tensors, read_tensors, write_tensors
from .encoder import Encoder

FEATURES = ("mask", "projection_bias")


class AttentionFault(Exception):
    """The port gave no output that the encoder could go on with; the judgement says why."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(judgement.message)
        self.judgement = judgement


def missing_claim(claims: StartAnswer) -> str | None:
    """What the port would have to claim before it is asked, or None when it claims all of it."""
    claim = claims.ops.get("mha")
    if claim is None:
        return "op mha"
    if "f32" not in claim.dtypes:
        return "dtype f32 of mha"
    return next((f"{feature} of mha" for feature in FEATURES if feature not in claim.features), None)


@dataclass
class PortAttention:
    """The attention of every layer by one variant of a port that runs. Files come and go in `folder`."""

    session: Session
    encoder: Encoder
    variant: str
    folder: Path
    case: str = "minilm/embedding"

    def __call__(self, layer: int, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The output (B, T, C) of one layer. Raises AttentionFault; the next call starts afresh after one."""
        inputs, outputs = self.folder / "in.safetensors", self.folder / "out.safetensors"
        write_tensors(inputs, {"x": x, "mask": mask, **self.encoder.attention_weights(layer)})
        outputs.unlink(missing_ok=True)
        request = {
            "case": self.case,
            "op": "mha",
            "variant": self.variant,
            "config": {"num_heads": self.encoder.num_heads},
            "inputs": str(inputs),
            "outputs": str(outputs),
            "want": ["output"],
        }
        try:
            answer = self.session.run(request)
        except PortFault as fault:
            raise _fault(fault.outcome, layer, str(fault)) from None
        if answer["status"] != "ok" and outputs.exists():
            raise _fault("fail", layer, f"answered {answer['status']}, but wrote a file")
        if answer["status"] == "unsupported":
            what = f"claimed all of it, then answered unsupported: {answer.get('feature')}"
            raise _fault("fail", layer, what)
        if answer["status"] == "error":
            raise _fault("error", layer, f"{answer.get('code')}: {answer.get('message', '')}")
        return _read_output(outputs, layer, x)


def _read_output(path: Path, layer: int, x: np.ndarray) -> np.ndarray:
    """The tensor `output`, which has the shape and dtype of x and is finite."""
    try:
        tensors: Tensors = read_tensors(path)
    except (OSError, SafetensorError) as error:
        raise _fault("fail", layer, f"status ok, but no outputs that can be read: {error}") from None
    output = tensors.get("output")
    if output is None:
        raise _fault("fail", layer, f"expected the tensor output, got {sorted(tensors) or 'none'}")
    if (output.shape, output.dtype) != (x.shape, x.dtype):
        expected, got = (f"{t.dtype} {list(t.shape)}" for t in (x, output))
        raise _fault("fail", layer, f"expected {expected}, got {got}")
    if not np.isfinite(output).all():
        element = [int(i) for i in np.argwhere(~np.isfinite(output))[0]]
        raise _fault("fail", layer, f"not finite at {element}: {output[tuple(element)]}")
    return output


def _fault(outcome: Outcome, layer: int, what: str) -> AttentionFault:
    message = f"layer {layer}: {what}"
    difference = Difference("output", message) if outcome == "fail" else None
    return AttentionFault(Judgement(outcome, message, difference=difference))
