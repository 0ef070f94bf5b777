"""A GPU that the user describes, in a TOML or JSON file or in a dict."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cute_gemm.errors import OptionError
from cute_gemm.gpus.gpu import KEYS, Gpu, Peak, Unit

#: File names of GPU descriptions.
SUFFIXES = (".toml", ".json")


#: Bounds of rates, of integers, of the characters of a name, and of the bytes of a file.
_LEAST, _MOST, _GREATEST, _LONGEST, _BYTES = 1e-3, 1e9, 2**40, 100, 2**20


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not (_LEAST <= value <= _MOST):
        raise ValueError
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not 1 <= operator.index(value) <= _GREATEST:
        raise ValueError
    return operator.index(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _LONGEST:
        raise ValueError
    return value


#: Required values: what each is, and the function that reads it.
_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": (f"a text of at most {_LONGEST} characters", _text),
    "cc": ("the compute capability as an integer: 90", _whole),
    "sms": ("the number of multiprocessors", _whole),
    "clock_ghz": ("GHz, 0.001 to 10**9", _positive),
    "bandwidth_gbs": ("10**9 bytes per second, 0.001 to 10**9", _positive),
    "l2_bytes": ("bytes of L2, an integer", _whole),
}
#: Tables of peak rates, all optional but float32, and their units.
_PEAKS: dict[str, Unit] = {"tensor_cores": "tensor cores", "cuda_cores": "CUDA cores"}


def described(values: Mapping[str, Any], where: str) -> Gpu:
    """Return the GPU with these values; raise OptionError for the first invalid one."""
    for name in values:
        if name not in (*_FIELDS, *_PEAKS):
            known = ", ".join((*_FIELDS, *_PEAKS))
            what = f"gpu: {where} has {_shown(name)}"
            raise OptionError(f"{what}, which is not known; expected {known}")
    fields: dict[str, Any] = {}
    for name, (what, reads) in _FIELDS.items():
        if name not in values:
            raise OptionError(f"gpu: {where} has no {name}; expected {what}")
        fields[name] = _read(reads, values[name], f"gpu: {where} has {name}", what)
    peaks = []
    for table, unit in _PEAKS.items():
        rates = values.get(table, {})
        if not isinstance(rates, Mapping) or not set(rates) <= set(KEYS):
            raise OptionError(
                f"gpu: {where} has {table}={_shown(rates)}; expected 10**12 operations per second "
                f"of dense matrices by type, of {', '.join(KEYS)}"
            )
        for key, rate in rates.items():
            what, expected = f"gpu: {where} has {table}.{key}", "10**12 per second, 0.001 to 10**9"
            peaks.append(Peak(key, unit, _read(_positive, rate, what, expected)))
    return with_rates(Gpu(**fields, aliases=(), peaks=tuple(peaks), source=where))


def with_rates(gpu: Gpu) -> Gpu:
    """Return a GPU if it has the rate that every prediction needs; otherwise raise OptionError."""
    if gpu.peak("float32", "CUDA cores") is None:
        raise OptionError(
            f"gpu: {gpu.name} has no rate of float32 on CUDA cores (cuda_cores.float32); expected "
            "10**12 operations per second"
        )
    return gpu


def _read(reads: Callable[[Any], Any], value: Any, what: str, expected: str) -> Any:
    try:
        return reads(value)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"{what}={_shown(value)}; expected {expected}") from None


def _shown(value: Any) -> str:
    """Shorten a value for messages."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # an integer with thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) < 100 else f"{text[:80]} ..."


def of_file(path: Path) -> Gpu:
    """Return the GPU that a file describes; raise OptionError if it cannot be read."""
    if not path.is_file():  # reading a FIFO would wait
        raise OptionError(f"gpu={str(path)!r} is not a file; expected a file with a GPU's values")
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES + 1)
        if len(data) > _BYTES:
            raise ValueError(f"it has more than {_BYTES} bytes")
        text = data.decode()
        if path.suffix.lower() == ".json":
            values = json.loads(text)
        else:
            import tomllib  # type: ignore[import-not-found,unused-ignore]

            values = tomllib.loads(text)
    except ImportError:
        raise OptionError(f"gpu={str(path)!r}: TOML needs Python 3.11; write it as JSON") from None
    except RecursionError:
        raise OptionError(
            f"gpu={str(path)!r} cannot be read: its values are nested too deeply; expected name, "
            "cc, sms, ..."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"gpu={str(path)!r} cannot be read: {reason}") from error
    if not isinstance(values, dict):
        raise OptionError(f"gpu={str(path)!r} has no table of values; expected name, cc, sms, ...")
    return described(values, str(path))
