"""Logs to stdout, once in a while."""

from honest import answers, write, write_answer

for number, (request, answer) in enumerate(answers()):
    if request.get("case", "").startswith("softmax/size/"):
        write(f"INFO request {number}: {request['case']}\n")
    write_answer(answer)
