"""How many of ONNX's node cases onnxruntime passes as they are: ONNX's own models, by ONNX's own tolerance.

    .venv/bin/python conformance/peers/onnxruntime/vectors.py        # or with `web`

Under the protocol (port.py) a case comes in our words and goes back in ONNX's, which can say the same thing in another
way: a short mask is padded, scores after the bias are asked for without a mask. So the numbers there are higher.
"""

import sys
from collections import Counter
from typing import Any

import numpy as np
from engine import Engine, WebEngine
from onnx.backend.test.runner import Runner

from conformance.onnx_suite.vectors import MODULES, read_cases


def main() -> None:
    """A line for each operator, and one for each case that is not passed."""
    engine = WebEngine() if sys.argv[1:] == ["web"] else Engine()
    print(engine.runtime)
    for operator in MODULES:
        found = {case.name: judge(engine, case) for case in read_cases(operator)}
        counts = Counter("pass" if not problem else "other" for problem in found.values())
        print(f"{operator}: {counts['pass']} of {len(found)}")
        for name, problem in found.items():
            if problem:
                print(f"  {name}: {problem}")


def judge(engine: Engine, case: Any) -> str:
    """Empty when the case passes; else what came instead."""
    ((inputs, outputs),) = case.data_sets
    graph = case.model.graph
    feeds = {entry.name: np.asarray(x) for entry, x in zip(graph.input, inputs, strict=True)}
    try:
        got = engine.run_model(case.model.SerializeToString(), feeds, [entry.name for entry in graph.output])
        Runner.assert_similar_outputs(outputs, got, case.rtol, case.atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:120]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:120]
    return ""


if __name__ == "__main__":
    main()
