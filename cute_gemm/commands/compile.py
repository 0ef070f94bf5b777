"""``cute-gemm compile``: compile kernels into the cache, or a directory for another machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

from cute_gemm._text import counted, named, size
from cute_gemm.api import compile, plan
from cute_gemm.arrays.base import Order
from cute_gemm.commands.arguments import (
    PROBLEM_WORDS,
    add,
    add_options,
    add_problem,
    given,
    planned,
)
from cute_gemm.commands.layers import Layer, layer, shapes, tokens
from cute_gemm.commands.output import (
    OK,
    build_dict,
    build_time,
    output_file,
    print_json,
    progress,
    say,
    silent,
    write_output,
)
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels import registry
from cute_gemm.plan.builds import Builds
from cute_gemm.plan.plan import Plan

#: Extents, and so leading dimensions, of matrices that are read by 16 bytes, and by elements.
_ALIGNED, _BY_ELEMENT = 1024, 1023
_ORDERS: tuple[Order, ...] = get_args(Order)

_FOR = (
    'in place of OP and sizes, "TN,NN": every kernel that may be selected for these ops and types '
    "(--dtype float16,float32/tf32) at any extents, with A, B and C all aligned to 16 bytes or all "
    "read element by element, and C column- or row-major; of --kernel alone unless that is auto"
)
_LAYER = {
    "--layer SHAPES": "in place of OP and sizes, N x K of the weights of layers, "
    "4096x4096,11008x4096: the fewest kernels that serve y = x @ w.T of row-major x and w",
    "--tokens RANGE": "with --layer, rows of x: FIRST:LAST or FIRST:LAST:STEP (default 1:8192)",
}
_WITHIN = {
    "--within FRACTION": "with --layer: a kernel serves if it is predicted to take up to this "
    "fraction longer than the best (default 0.02)"
}
_OUTPUT = (
    ": the cubin; - for stdout; with --for and --layer a directory for all of them, which another "
    "machine can read with CUTE_GEMM_CACHE_DIR=ITS_OWN:DIRECTORY"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm compile``."""
    add_problem(parser, ops="*")
    add_options(parser, {"--for OPS": _FOR}, dest="ops_for")
    add_options(parser, _LAYER)
    add_options(parser, _WITHIN, type=float)
    add(parser, "-o,--output", help=_OUTPUT)


def command(arguments: argparse.Namespace) -> int:
    """Compile each op for each arch, several at once; return 0."""
    archs = arguments.arch.split(",") if arguments.arch else [None]
    if arguments.ops_for is not None:
        return _for_all(arguments, archs)
    if arguments.layer is not None:
        return _for_layers(arguments, archs)
    for name in ("tokens", "within"):
        if getattr(arguments, name) is not None:
            raise OptionError(f"--{name} came without --layer; omit it or give --layer")
    if not arguments.ops:
        raise OptionError(
            "the following arguments are required: OP, --for or --layer; see cute-gemm compile "
            "--help"
        )
    if arguments.output and len(archs) * len(arguments.ops) > 1:
        raise OptionError(
            f"--output takes one cubin, and {counted(len(arguments.ops), 'op')} for "
            f"{counted(len(archs), 'architecture')} make more; omit it: the cache has them all"
        )
    file = output_file(arguments)
    tell = silent if arguments.json or (arguments.output and not file) else say
    plans = [planned(arguments, op=op, arch=arch) for op in arguments.ops for arch in archs]
    with progress() as shown:
        compile(plans, partial(shown, "kernels compiled"))
    for compiled in plans:
        build = compiled.build
        registers = counted(build.resources.registers, "register")
        tell(f"{compiled.symbol}  {compiled.arch}")
        tell(f"  ... {build_time(compiled)}, {size(len(build.cubin))}, {registers}")
        if arguments.output:
            write_output(file, build.cubin)
    if arguments.json:
        print_json({"builds": [build_dict(compiled.kernel, compiled.build) for compiled in plans]})
    return OK


def _for_all(arguments: argparse.Namespace, archs: Sequence[str | None]) -> int:
    """Compile all kernels that may be selected for some ops and types; print number and size."""
    _alone(arguments, "--for", "it compiles for all extents, orders of C and alignments", "dtype")
    ops, dtypes = arguments.ops_for.split(","), arguments.dtype.split(",")
    kinds = ops, dtypes, archs, arguments.kernel, arguments.options
    place, taken, builds = _build(
        arguments, lambda tell: _chosen_from(*kinds, partial(tell, "problems planned"))
    )
    if arguments.json:
        print_json({"directory": place, "count": len(builds), "bytes": taken, "builds": builds})
        return OK
    for arch in dict.fromkeys(build["arch"] for build in builds):
        sizes = [build["bytes"] for build in builds if build["arch"] == arch]
        say(f"{arch}: {counted(len(sizes), 'kernel')}, {size(sum(sizes))} of cubins")
    say(f"{counted(len(builds), 'kernel')}, {size(taken)} in {place}")
    return OK


def _for_layers(arguments: argparse.Namespace, archs: Sequence[str | None]) -> int:
    """Compile the fewest kernels that serve layers at any number of tokens; print times."""
    words = ("dtype", "compute", "out_dtype")
    _alone(arguments, "--layer", "it is for layers at all numbers of tokens", *words)
    numbers = tokens("1:8192" if arguments.tokens is None else arguments.tokens)
    within = 0.02 if arguments.within is None else arguments.within
    if not 0 <= within < 1:
        raise OptionError(f"--within {within:g}; expected a fraction of 0 or more, such as 0.02")
    same = named(arguments, *words, "kernel") | arguments.options
    layers: list[Layer] = []

    def plans(tell: Callable[[str, int, int], None]) -> list[Plan]:
        for (n, k), arch in product(shapes(arguments.layer), archs):
            at = partial(tell, f"{n} x {k}: numbers of tokens planned")
            layers.append(layer(n, k, numbers, within, at, arch=arch, **same))
        return [each for x in layers for each in x.plans]

    place, taken, builds = _build(arguments, plans)
    if arguments.json:
        rows = [named(x, *(name for name in x._fields if name != "plans")) for x in layers]
        print_json({"directory": place, "count": len(builds), "bytes": taken, "layers": rows,
                    "tokens": len(numbers), "builds": builds})  # fmt: skip
        return OK
    for x in layers:
        say(
            f"{x.n} x {x.k}, {counted(len(numbers), 'number')} of tokens: {x.kernels} of "
            f"{counted(x.candidates, 'kernel')}, predicted to take {x.mean - 1:.2%} longer "
            f"than the best on average and {x.worst - 1:.2%} at most"
        )
    say(f"{counted(len(builds), 'kernel')}, {size(taken)} in {place}")
    say(f"calls use them with prefer_loaded={within:g} or CUTE_GEMM_PREFER_LOADED={within:g}")
    return OK


def _alone(arguments: argparse.Namespace, option: str, what: str, *allowed: str) -> None:
    """Refuse arguments that an option that compiles for many problems does not take."""
    others = [name for name in given(arguments, *PROBLEM_WORDS) if name not in allowed]
    others = ["OP"] * bool(arguments.ops) + others
    if others:
        raise OptionError(
            f"{option} does not go with {', '.join(others)}: {what}; omit one of the two"
        )
    if str(arguments.output) == "-":
        raise OptionError(
            f"--output - came with {option}, which writes files; expected a directory"
        )


def _build(
    arguments: argparse.Namespace,
    plans: Callable[[Callable[[str, int, int], None]], list[Plan]],
) -> tuple[str, int, list[dict[str, Any]]]:
    """Build plans, in a directory if one is named; return it, its bytes, and the builds."""
    from cute_gemm.toolchain import cache

    with _directory(arguments.output):
        reason = cache.writable()
        if reason is not None:
            raise OptionError(
                f"output={str(cache.directory())!r} cannot be used ({reason}); expected a "
                "directory that you can write to"
            )
        with progress() as tell:
            building = Builds(plans(tell))
            building.finish(partial(tell, "kernels compiled"))
        place, taken = str(cache.directory()), cache.size()
    builds = [
        build_dict(building.steps[key].kernel.name, future.result())
        for key, future in building.futures.items()
    ]
    return place, taken, builds


def _chosen_from(
    ops: Sequence[str], dtypes: Sequence[str], archs: Sequence[str | None], kernel: str,
    options: dict[str, Any], tell: Callable[[int, int], None] = silent,
) -> list[Plan]:  # fmt: skip
    """Return a plan for each arch and each config that may be selected for these problems."""
    plans: dict[tuple[str, ...], Plan] = {}
    refused: UnsupportedError | None = None
    problems = [
        (op.strip(), dtype.strip(), arch, sizes, order)
        for op, dtype, arch in product(ops, dtypes, archs)
        for sizes, order in product(_sizes(op.strip(), kernel), _ORDERS)
    ]
    for done, (op, dtype, arch, sizes, order) in enumerate(problems):
        tell(done, len(problems))
        name, _, compute = dtype.partition("/")
        try:
            selected = plan(
                op, dtype=name, compute=compute or None, order=order, kernel=kernel,
                backend="cpu", arch=arch, **sizes, **options,
            )  # fmt: skip
        except UnsupportedError as error:  # for example of one alignment
            refused = error
            continue
        for candidate in selected.candidates():
            taken = selected.taking(candidate)
            key = (taken.arch, *(step.unit.symbol for step in taken.steps))
            plans[key] = taken
    if refused is not None and not plans:
        raise refused
    return list(plans.values())


def _sizes(op: str, kernel: str) -> Iterator[dict[str, Any]]:
    """Yield extents and leading dimensions of problems that together have all configs."""
    names = registry.CONTENDERS if kernel == "auto" else (kernel,)
    for extent in (_ALIGNED, _BY_ELEMENT):
        shapes = (pair for name in names for pair in registry.get(name).shapes(extent))
        for m, n in dict.fromkeys(shapes):
            sizes: dict[str, Any] = {"m": m, "n": n, "k": extent}
            if 1 in (m, n):  # a vector with contiguous elements, besides one without
                yield sizes
            lda = max(extent, m if op[:1] in "Nn" else extent)
            ldb = max(extent, extent if op[1:] in "Nn" else n)
            yield {**sizes, "lda": lda, "ldb": ldb}


@contextmanager
def _directory(place: Path | None) -> Iterator[None]:
    """Use this directory, if there is one, alone as the cache while the body runs."""
    if place is None:
        yield
        return
    if os.pathsep in str(place):
        raise OptionError(
            f"output={str(place)!r}; expected a directory without {os.pathsep!r} in its name, "
            "which separates those of CUTE_GEMM_CACHE_DIR"
        )
    before = os.environ.get("CUTE_GEMM_CACHE_DIR")
    os.environ["CUTE_GEMM_CACHE_DIR"] = str(place.absolute())
    try:
        yield
    finally:
        del os.environ["CUTE_GEMM_CACHE_DIR"]
        if before is not None:
            os.environ["CUTE_GEMM_CACHE_DIR"] = before
