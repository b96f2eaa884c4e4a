"""The closed set of errors. Every port raises the same code for the same bad call.

A message names the function, the argument, what was expected and what came. A call that raises has changed nothing.
"""


class AttentionError(ValueError):
    """Base of all errors of this package; `code` is the stable name that every language shares."""

    code = "internal"


class ShapeMismatch(AttentionError):
    """Sizes or ranks that do not fit together."""

    code = "shape_mismatch"


class DtypeMismatch(AttentionError):
    """An array of the wrong element type."""

    code = "dtype_mismatch"


class InvalidConfig(AttentionError):
    """A scalar option outside its range, or two options that exclude each other."""

    code = "invalid_config"


class CapacityExceeded(AttentionError):
    """A cache without room for what it was given."""

    code = "capacity_exceeded"


class InvalidFile(AttentionError):
    """A file that cannot be read or written, or is not what it should be."""

    code = "invalid_request"


class Unsupported(AttentionError):
    """A legal request that this implementation, or this machine, does not offer."""

    code = "unsupported"

    def __init__(self, feature: str, message: str | None = None) -> None:
        super().__init__(message or f"{feature} is not offered here")
        self.feature = feature
