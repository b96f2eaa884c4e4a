"""Takes anything: where it should refuse, it answers ok with some numbers."""

import numpy as np
from honest import change_answers
from safetensors.numpy import save_file


def change(request, answer):
    if answer["status"] == "error":
        save_file({"output": np.zeros((1, 1, 1, 1), np.float32)}, request["outputs"])
        return {"seq": request["seq"], "status": "ok"}
    return answer


change_answers(change)
