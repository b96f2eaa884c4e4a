"""One run of every test for each library; a torch that was left out is said once, at the top of the report."""

from pathlib import Path

import pytest
from backends import DTYPES, HAS_TORCH, Backend, backends
from hypothesis import settings
from ports import Driver, libraries

from rosetta_port import numpy_port

# The same examples in every run: a failure that appears tomorrow comes from a change, not from luck.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("repeatable")

collect_ignore = [] if HAS_TORCH else ["test_torch.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "error")


def pytest_report_header() -> str:
    if not HAS_TORCH:
        return "torch is not installed: only the NumPy half of these tests exists"
    import torch

    torch.set_num_threads(1)
    return f"torch {torch.__version__}"


@pytest.fixture(params=backends(), ids=lambda backend: backend.name)
def lib(request: pytest.FixtureRequest) -> Backend:
    return request.param


@pytest.fixture(params=libraries(), ids=lambda library: library.name)
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Driver:
    return Driver(request.param, tmp_path)


@pytest.fixture
def port(tmp_path: Path) -> Driver:
    """NumPy's alone, which has every op and every cache."""
    return Driver(numpy_port.LIBRARY, tmp_path)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param
