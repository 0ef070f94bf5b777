"""Measure ``unfused_bits=True``: the share of elements equal to the unfused program, and the time.

    python tests/gpu/unfused_bits.py [--elements 1e8] [--size 4096] [--rounds 7] [--json FILE]

For each activation and type, the script prints the number of elements that are compared with
PyTorch's activation of ``linear(x, w, b)``; the share that is bitwise equal with
``unfused_bits=True`` (expected 1) and without; and the microseconds of both and of the unfused
program, for a cube of ``--size``. The products have several extents and magnitudes. Times are
medians of calls in CUDA graphs, in turn.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from graph_times import clocked, in_turns, parsed, places, write
from torch.nn import functional

import cute_gemm.torch as ct

#: Rows, columns and k of the products: few rows, split-K, many rows.
SHAPES = (
    (4096, 4096, 512),
    (16, 8192, 4096),
    (96, 2048, 8192),
    (4096, 4096, 1000),
    (1, 16384, 2048),
)
#: Standard deviations of the arguments of the activations.
SCALES = (1.0, 0.1, 3.0, 8.0)
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "relu2": lambda z: functional.relu(z).square(),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "hardswish": functional.hardswish,
    "swiglu": lambda z: functional.silu(z[..., 0::2]) * z[..., 1::2],
    "geglu": lambda z: functional.gelu(z[..., 0::2]) * z[..., 1::2],
}


def bits(x: torch.Tensor) -> torch.Tensor:
    """Return the elements as integers."""
    return x.view({2: torch.int16, 4: torch.int32}[x.itemsize])


def drawn(m: int, n: int, k: int, dtype: torch.dtype, scale: float = 1.0) -> list[torch.Tensor]:
    """Return x, w and b of a layer. Its results have a standard deviation of ``scale``."""
    x, w, b = (torch.randn(shape, device="cuda") for shape in ((m, k), (n, k), (n,)))
    return [each.to(dtype) for each in (x, w * (scale / k**0.5), b * (scale / 4))]


def shares(name: str, dtype: torch.dtype, elements: float) -> tuple[int, float, float]:
    """Return the elements compared, and the shares equal with the option and without."""
    compared, equal, turn = 0, [0, 0], 0
    while compared < elements:
        x, w, b = drawn(*SHAPES[turn % len(SHAPES)], dtype, SCALES[turn % len(SCALES)])
        for bias in (b, None):
            expected = bits(ACTIVATIONS[name](ct.linear(x, w, bias)).contiguous())
            for place, option in enumerate((True, False)):
                found = bits(ct.linear(x, w, bias, name, unfused_bits=option))
                equal[place] += int((found == expected).sum())
            compared += expected.numel()
        turn += 1
    return compared, equal[0] / compared, equal[1] / compared


def microseconds(name: str, dtype: torch.dtype, size: int, rounds: int) -> dict[str, float]:
    """Return median microseconds of a call with the option, without it, and of the program."""
    copies = places(lambda: drawn(size, size, size, dtype), 2 * size * size * dtype.itemsize)
    activation = ACTIVATIONS[name]
    runs = {
        "unfused_bits": lambda x, w, b: ct.linear(x, w, b, name, unfused_bits=True),
        "fused": lambda x, w, b: ct.linear(x, w, b, name),
        "program": lambda x, w, b: activation(ct.linear(x, w, b)),
    }
    times = clocked({name: in_turns(run, copies) for name, run in runs.items()}, 10, rounds)
    return {name: statistics.median(x) for name, x in times.items()}


def main() -> None:
    """Measure and print all activations and types, and write the results if a file is given."""
    options = parsed(
        __doc__, elements=(1e8, "compared elements of each activation and type"), size=4096
    )
    torch.manual_seed(options.seed)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for name in ACTIVATIONS:
            compared, with_option, without = shares(name, dtype, options.elements)
            us = microseconds(name, dtype, options.size, options.rounds)
            row = {"activation": name, "dtype": str(dtype)[6:], "elements": compared,
                   "equal": with_option, "equal_without": without, "us": us}  # fmt: skip
            found.append(row)
            print(
                f"{name:10} {row['dtype']:9} {compared:.3g} elements, equal {with_option:.9f}, "
                f"without {without:.4f}; {us['unfused_bits']:.1f} us, "
                f"{us['unfused_bits'] / us['fused']:.3f} of the fused one's {us['fused']:.1f}, "
                f"program {us['program']:.1f}",
                flush=True,
            )
    write(options.json, found)


if __name__ == "__main__":
    main()
