"""Refuses what it should, always for the same reason."""

from honest import change_answers


def change(request, answer):
    return answer | {"code": "internal"} if answer["status"] == "error" else answer


change_answers(change)
