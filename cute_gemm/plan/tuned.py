"""Tuned configs: a file per GPU next to the cubins, read once per process.

Files of another version count as missing, and damaged ones too, with a warning. The next
config replaces them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_type_hints

from cute_gemm._version import __version__
from cute_gemm.cost_model.footprint import pitch, steps
from cute_gemm.kernels.candidate import Measured
from cute_gemm.toolchain import cache

if TYPE_CHECKING:
    from cute_gemm.plan.plan import Plan
    from cute_gemm.problem.problem import GemmProblem

_FORMAT = 4
#: Prefix of the files' names.
_KIND = "tuned"


#: Configs by GPU and question; those of a GPU are read at first use.
_tuned: dict[str, dict[str, Measured]] = {}


def find(
    gpu: str, problem: GemmProblem, arch: str, kernel: str, options: Mapping[str, Any]
) -> Measured | None:
    """Return the config stored for a GPU, a problem and the arguments of a call, or None."""
    configs = _tuned.get(gpu)
    if configs is None:
        configs = _tuned[gpu] = _read(gpu)
    return configs.get(question(problem, arch, kernel, options)) if configs else None


def store(
    gpu: str, problem: GemmProblem, arch: str, kernel: str, options: Mapping[str, Any],
    config: Measured,
) -> None:  # fmt: skip
    """Store a config in this process and on disk, next to the configs of other processes."""
    key, name = question(problem, arch, kernel, options), cache.file_of(_KIND, gpu)
    with cache.locked(name):
        configs = {**_tuned.get(gpu, {}), **_read(gpu), key: config}
        cache.put_file(name, _encode(gpu, configs))
    _tuned[gpu] = configs


def measurement(plan: Plan, seconds: float, configs: int) -> Measured:
    """Return the config of a plan, the fastest of so many ``configs``, with its time."""
    pack, split_k = plan.algorithm.pack, plan.algorithm.split_k
    return Measured(plan.kernel, plan.symbol, pack, split_k, seconds, configs)


def question(problem: GemmProblem, arch: str, kernel: str, options: Mapping[str, Any]) -> str:
    """Return the key of a config on one GPU: the problem's class and the arguments of a call."""
    words = [arch, kernel, f"{problem.m}x{problem.n}x{problem.k}", problem.compute]
    words += [f"l={problem.l}"] * (problem.l != 1) + [problem.epilogue.name]
    words += [f"groups={problem.groups.mode}"] * bool(problem.groups)
    words += [f"{x.name} of {x.shape},{steps(x)}" for x in problem.scales]
    for x in problem.matrices:
        shared = ",shared" * (problem.l != 1 and not x.batch_stride)
        conj = ",conj" * x.conj
        words.append(f"{x.name}={x.dtype},{x.major},{x.alignment},{pitch(x)}{conj}{shared}")
    words += [f"{name}={value}" for name, value in sorted(options.items())]
    return " ".join(filter(None, words))


def stored() -> dict[str, int]:
    """Return the number of configs of each GPU that are stored in this directory."""
    counts = {}
    for path in cache.files(f"{_KIND}-*.json"):
        with suppress(OSError, ValueError):
            gpu, configs = _decode(cache.read(path))
            counts[gpu] = len(configs)
    return {gpu: count for gpu, count in counts.items() if count}


def clear() -> None:
    """Delete all configs."""
    _tuned.clear()
    cache.remove(_KIND)


def _read(gpu: str) -> dict[str, Measured]:
    merged: dict[str, Measured] = {}
    file = cache.file_of(_KIND, gpu)
    for data in cache.contents(file):
        try:
            name, configs = _decode(data)
        except ValueError as error:
            cache.warn_damaged(file, error, "tune")
            continue
        if name == gpu:
            merged = {**configs, **merged}
    return merged


def _version() -> dict[str, Any]:
    return {"format": _FORMAT, "version": __version__}


def _encode(gpu: str, configs: dict[str, Measured]) -> bytes:
    rows = {key: config._asdict() for key, config in configs.items()}
    return json.dumps({**_version(), "gpu": gpu, "configs": rows}, indent=1).encode()


def _decode(data: bytes) -> tuple[str, dict[str, Measured]]:
    """Return GPU and configs of a file, none for another version; ValueError if damaged."""
    try:
        content = json.loads(data)
        if any(content[name] != value for name, value in _version().items()):
            return "", {}
        return str(content["gpu"]), {key: _config(row) for key, row in content["configs"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it is damaged") from error


#: Types of values in a file, by the types of fields; greatest number, characters of a text.
_TYPES = {str: (str,), int: (int,), float: (int, float)}
_MOST, _LONGEST = 1e6, 1000


def _config(row: dict[str, Any]) -> Measured:
    values: dict[str, Any] = {}
    for name, kind in get_type_hints(Measured).items():
        value = row[name]
        fits = type(value) in _TYPES[kind] and (
            value.isprintable() and len(value) <= _LONGEST if kind is str else 0 <= value <= _MOST
        )
        if not fits:
            raise ValueError(f"{name} does not fit")
        values[name] = kind(value)
    return Measured(**values)
