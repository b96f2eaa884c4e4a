"""A vector loop without its remainder: channels beyond a multiple of 4 do not count."""

from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def no_tail(q, k, v, *, scale=None, **options):
    if q.ndim == k.ndim == 4 and q.shape[3] == k.shape[3] and q.shape[3] > 4 and q.shape[3] % 4:
        scale = q.shape[3] ** -0.5 if scale is None else scale
        D = q.shape[3] // 4 * 4
        q, k = q[..., :D], k[..., :D]
    return sdpa_steps(q, k, v, scale=scale, **options)


lie_with(sdpa=lambda *args, **options: no_tail(*args, **options).output, sdpa_steps=no_tail)
