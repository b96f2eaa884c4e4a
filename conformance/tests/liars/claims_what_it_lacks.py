"""Claims softcap, and then has none."""

from pathlib import Path

from honest import change_answers


def change(request, answer):
    if request["config"].get("softcap"):
        Path(request["outputs"]).unlink(missing_ok=True)
        return {"seq": request["seq"], "status": "unsupported", "feature": "softcap"}
    return answer


change_answers(change)
