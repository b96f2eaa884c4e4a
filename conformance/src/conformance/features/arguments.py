"""What features and costs are read off: they only look, so any mapping will do."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]
Config = Mapping[str, Any]
