"""Files that appear whole or not at all, so that who reads one never meets the half of it."""

import os
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """First under another name in the same folder, then renamed, which no reader can see half done.

    Nothing is left behind when it fails. Raises OSError; ValueError for what is no path.
    """
    unfinished = Path(f"{os.fspath(path)}.{os.getpid()}.unfinished")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
