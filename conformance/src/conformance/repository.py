"""Where the checkout is: ports are started in its root, and everything made lies below it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
