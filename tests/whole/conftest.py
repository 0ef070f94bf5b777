"""Fixtures of tests with PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def compiled() -> Iterator[Callable[..., Any]]:
    """Return `torch.compile` without graph breaks and with dynamic shapes."""
    import torch

    torch._dynamo.reset()
    yield lambda function: torch.compile(
        function, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    torch._dynamo.reset()
