"""Says some things twice."""

import json

from honest import answers, write

for request, answer in answers():
    line = json.dumps(answer) + "\n"
    write(2 * line if request.get("case", "").startswith("softmax/size/") else line)
