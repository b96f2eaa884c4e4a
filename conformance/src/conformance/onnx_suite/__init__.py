"""The public vectors of ONNX as a suite: made from the installed `onnx` package, translated into our words.

`docs/onnx.md` has the table of how each input and attribute maps.
"""
