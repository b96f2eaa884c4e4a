"""Linear attention that sums over the wrong keys.

`state`: a state that is given has no norm. `whole`: causal above the fraction bar, over all keys below it. `relu`: with
another feature map. `chunk`: each chunk but the last hands on one key too few.
"""

import sys

import numpy as np
from honest import lie_with, module

lie = sys.argv[1]
linear = module("linear_attention")
chunked = module("linear_chunked")
add_keys, read_norm = linear.add_keys, linear.read_norm

if lie == "state":
    linear.read_norm = lambda q, norm: 0 * read_norm(q, norm)
elif lie == "relu":
    linear.feature_map = lambda x: np.maximum(x, 0)
elif lie == "chunk":
    chunked.add_keys = lambda past, k, v: add_keys(past, k[:, :, :-1], v[:, :, :-1])
elif lie == "whole":
    parallel = linear.linear_attention

    def over_all(q, k, v, *, causal=False, state=None):
        steps = parallel(q, k, v, causal=causal, state=state)
        ones = np.ones_like(v[..., :1])
        features = linear.feature_map(q)
        seen = linear.read_norm(features, parallel(q, k, ones, causal=causal, state=None).state.norm)
        below = np.tril(np.ones((q.shape[2], k.shape[2]))) if causal else np.ones((q.shape[2], k.shape[2]))
        group = q.shape[1] // k.shape[1]
        due = features @ np.repeat(linear.feature_map(k), group, axis=1).swapaxes(2, 3)
        share = np.sum(due * below, axis=-1) / seen
        return steps._replace(output=(steps.output * share[..., None]).astype(v.dtype))


lie_with(**({"linear_attention": over_all} if lie == "whole" else {}))
