"""Activations of layers, as functions of PyTorch and of JAX."""

from collections.abc import Callable
from functools import partial
from typing import Any

#: By name: functions of the library and the argument, for PyTorch and for JAX.
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
    # torch.nn.functional.silu has no second derivative.
    "silu": (lambda torch, x: x * torch.sigmoid(x), lambda jax, x: jax.nn.silu(x)),
    "sigmoid": (lambda torch, x: torch.sigmoid(x), lambda jax, x: jax.nn.sigmoid(x)),
    "tanh": (lambda torch, x: torch.tanh(x), lambda jax, x: jax.numpy.tanh(x)),
    "hardswish": (
        # torch.nn.functional.hardswish multiplies by a float32 1 / 6 on a GPU, also in float64.
        lambda torch, x: x * torch.nn.functional.relu6(x + 3) / 6,
        lambda jax, x: jax.nn.hard_swish(x),
    ),
}


def of_library(library: Any) -> dict[str, Callable[[Any], Any]]:
    """Return the activations of ``torch`` or ``jax`` by name."""
    place = ("torch", "jax").index(library.__name__)
    return {name: partial(row[place], library) for name, row in ROWS.items()}
