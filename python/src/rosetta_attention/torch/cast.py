"""The half types of PyTorch at the edge of every op: in as f32, each result rounded once (../edge.py)."""

import torch

from ..edge import HALVES, Edge

NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
TYPES = {name: dtype for dtype, name in NAMES.items()}

op = Edge(
    torch.Tensor,
    name=lambda x: NAMES.get(x.dtype),
    widen=lambda x: x.float() if NAMES[x.dtype] in HALVES else x,
    narrow=lambda x, to: x.to(TYPES[to]),  # from f32: to the nearest value, half to even
).op
