"""Writes its output first and finds the fault afterwards."""

from pathlib import Path

from honest import change_answers


def change(request, answer):
    if answer["status"] == "error":
        Path(request["outputs"]).write_bytes(b"half a fi")
    return answer


change_answers(change)
