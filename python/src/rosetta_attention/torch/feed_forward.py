"""The feed-forward layer of a block: every position on its own, out to a wider space and back.

    W_2 act(W_1 x + b_1) + b_2,   for swiglu  W_2 swiglu(W_1 x + b_1, W_3 x + b_3) + b_2

Letters: B batch, T positions, C model width, F width inside.

Sources: Vaswani et al., 2017, section 3.3; Shazeer, "GLU variants improve transformer", 2020.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import linear, relu

from ..checks import check_feed_forward
from .cast import op
from .gelu import gelu
from .swiglu import swiglu


@dataclass(frozen=True, eq=False)
class FeedForward:
    """The weights of one layer, (out, in). w_1: (F, C). w_2: (C, F). w_3: (F, C), for swiglu alone.

    b_1, b_2, b_3: one value a row of the weights, or None.
    activation: "gelu", "gelu_tanh", "relu" or "swiglu".
    """

    w_1: Tensor
    w_2: Tensor
    b_1: Tensor | None = None
    b_2: Tensor | None = None
    w_3: Tensor | None = None
    b_3: Tensor | None = None
    activation: str = "gelu"

    @op
    def __call__(self, x: Tensor) -> Tensor:
        """`x` (..., C) through the layer: (..., C). Raises ShapeMismatch, DtypeMismatch, InvalidConfig."""
        check_feed_forward("feed_forward", x, self)

        # 1. expand: to the inner width
        inner = linear(x, self.w_1, self.b_1)  # (..., F)

        # 2. activate: the only step that is not linear; swiglu has a second projection to gate
        if self.w_3 is not None:
            inner = swiglu(inner, linear(x, self.w_3, self.b_3))
        elif self.activation == "relu":
            inner = relu(inner)
        else:
            inner = gelu(inner, approximate="tanh" if self.activation == "gelu_tanh" else "none")

        # 3. contract: back to the model width
        return linear(inner, self.w_2, self.b_2)  # (..., C)
