"""The activations of layers, a row each: the same by PyTorch and by JAX."""

from collections.abc import Callable
from functools import partial
from typing import Any

#: Of the library and the argument.
ROWS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (lambda torch, x: torch.relu(x), lambda jax, x: jax.nn.relu(x)),
    "relu2": (lambda torch, x: torch.relu(x).square(), lambda jax, x: jax.nn.relu(x) ** 2),
    "gelu": (
        lambda torch, x: torch.nn.functional.gelu(x),
        lambda jax, x: jax.nn.gelu(x, approximate=False),
    ),
    "gelu_tanh": (
        lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        lambda jax, x: jax.nn.gelu(x),
    ),
    # PyTorch's own lacks a derivative of its gradient.
    "silu": (lambda torch, x: x * torch.sigmoid(x), lambda jax, x: jax.nn.silu(x)),
    "sigmoid": (lambda torch, x: torch.sigmoid(x), lambda jax, x: jax.nn.sigmoid(x)),
    "tanh": (lambda torch, x: torch.tanh(x), lambda jax, x: jax.numpy.tanh(x)),
    "hardswish": (
        # PyTorch's own multiplies by float32's 1 / 6 on a GPU, in float64 too.
        lambda torch, x: x * torch.nn.functional.relu6(x + 3) / 6,
        lambda jax, x: jax.nn.hard_swish(x),
    ),
}


def of_library(library: Any) -> dict[str, Callable[[Any], Any]]:
    """Activations by ``torch`` or ``jax``."""
    place = ("torch", "jax").index(library.__name__)
    return {name: partial(row[place], library) for name, row in ROWS.items()}
