"""Errors that belong to the protocol and not to a library. Library errors carry a `code` of their own."""


class InvalidRequest(Exception):
    """A request that is no request: no JSON, an unknown command, a field or tensor that is missing."""

    code = "invalid_request"


class InvalidConfig(Exception):
    """A value of the wrong JSON type, which the library never gets to see."""

    code = "invalid_config"


class Unsupported(Exception):
    """A legal request that the port does not offer; `feature` names what is missing, such as `dtype.f16`."""

    code = "unsupported"

    def __init__(self, feature: str) -> None:
        super().__init__(f"{feature} is not offered by this port")
        self.feature = feature
