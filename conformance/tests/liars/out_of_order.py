"""Answers the request before this one, as a port does that answers from a queue."""

from honest import change_answers

late = []


def change(request, answer):
    late.append(answer)
    return late[max(0, len(late) - 2)]


change_answers(change)
