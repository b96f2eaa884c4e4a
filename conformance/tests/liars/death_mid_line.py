"""Dies in the middle of an answer."""

import json
import os

from honest import answers, write, write_answer

for request, answer in answers():
    if request.get("case") == "softmax/size/5":
        write(json.dumps(answer)[:9])
        os._exit(1)
    write_answer(answer)
