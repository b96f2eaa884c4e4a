"""Takes a request and never comes back."""

import time

from honest import answers, write_answer

for request, answer in answers():
    if request.get("case") == "softmax/size/5":
        time.sleep(600)
    write_answer(answer)
