"""What is wrong with how the harness was used, as opposed to what is wrong with a port."""


class UsageError(Exception):
    """A broken file, an unknown name, a missing tool. The message says what to do; exit status 2."""
