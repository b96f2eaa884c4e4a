"""Ports made up for a test: a Python script of a few lines each, started like any other port."""

import sys
import textwrap
from pathlib import Path

from conformance.ports import Port

CLAIMS = {"softmax": {"variants": ["naive"], "dtypes": ["f32"], "features": ["lse"]}}

PREAMBLE = f"""
import json, os, sys, time

CLAIMS = {CLAIMS!r}
START = {{"status": "ok", "protocol": 1, "name": "fake", "ops": CLAIMS}}

def say(answer):
    sys.stdout.write(answer if isinstance(answer, str) else json.dumps(answer) + "\\n")
    sys.stdout.flush()

def requests():
    for line in sys.stdin:
        request = json.loads(line)
        if request["cmd"] == "start":
            say(START)
        elif request["cmd"] == "stop":
            say({{"status": "ok"}})
            return
        else:
            yield request

def ok(request):
    return {{"seq": request["seq"], "status": "ok"}}

"""


def fake_port(folder: Path, body: str, name: str = "fake", **fields: object) -> Port:
    """A port whose script is the preamble and `body`."""
    script = folder / f"{name}.py"
    script.write_text(PREAMBLE + textwrap.dedent(body))
    return Port(name=name, language="Python", kind="port", command=[sys.executable, str(script)], **fields)  # type: ignore[arg-type]
