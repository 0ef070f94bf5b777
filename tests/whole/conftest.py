"""What tests of PyTorch share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def compiled() -> Iterator[Callable[..., Any]]:
    """`torch.compile`, without a break and for every shape."""
    import torch

    torch._dynamo.reset()
    yield lambda function: torch.compile(
        function, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    torch._dynamo.reset()
