"""The reference machine of the caches as a port, for lies about what it holds and evicts; as it is, a control.

It knows no bad configuration, and keeps files in its memory.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from honest import write_answer

from conformance.case import Case, read_suite
from conformance.judge import output_dtype
from conformance.oracle import answer
from conformance.oracle.kv_cache import predict_codes
from conformance.repository import ROOT
from conformance.tensors import NUMPY_DTYPES, Tensors, is_float, read_tensors, write_tensors

NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def claims() -> dict[str, Any]:
    """All that any case asks of a cache."""
    cases = read_suite(ROOT / "conformance/fixtures/kv_cache").cases
    features = {name for case in cases for name in case.features}
    return {"kv_cache": {"variants": ["naive"], "dtypes": sorted(NUMPY_DTYPES), "features": sorted(features)}}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """The codes of the steps; what they write goes to the file."""
    config, inputs = request["config"], read_tensors(Path(request["inputs"]))
    with np.errstate(all="ignore"):
        codes = predict_codes(config, inputs)
        everything = answer("kv_cache", config, inputs, codes)
        case = Case(request["case"], "kv_cache", config, {})
        dtype = given_dtype(config, inputs)
        written: Tensors = {
            name: x.astype(NUMPY_DTYPES[output_dtype(case, dtype, name)]) if is_float(x) else x
            for name, x in everything.items()
        }
    write_tensors(Path(request["outputs"]), written)
    return {"status": "ok", "steps": codes}


def given_dtype(config: dict[str, Any], inputs: Tensors) -> str:
    """The type of the first keys or latents that come."""
    named = (step.get("k") or step.get("latent") for step in config["steps"])
    return next((NAMES[inputs[name].dtype] for name in named if name in inputs), "f32")


def serve() -> None:
    """Answers until `stop`."""
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any] = {"status": "ok"}
        if request["cmd"] == "start":
            about = {"name": "machine", "language": "Python", "version": "0", "runtime": "", "isa": []}
            reply |= {"protocol": 1, "threads": 1, "ops": claims()} | about
        elif request["cmd"] == "run":
            try:
                reply = run(request)
            except Exception as error:
                reply = {"status": "error", "code": "internal", "message": repr(error)}
        write_answer(reply | ({"seq": request["seq"]} if "seq" in request else {}))
        if request["cmd"] == "stop":
            return


if __name__ == "__main__":
    serve()
