"""Configs with inconsistent derived attributes, which proofs must reject."""

from dataclasses import fields
from functools import cached_property
from typing import Any

from cute_gemm.kernels.derived import derived


def altered(config: Any, **parts: Any) -> Any:
    """Return the config with the given derived attributes; all others keep their values."""
    kinds = type(config).__mro__
    names = {
        name for kind in kinds for name, value in vars(kind).items()
        if isinstance(value, (property, cached_property, derived))
    }  # fmt: skip
    own = {name: getattr(config, name) for name in names}
    kind = type(kinds[0].__name__, (kinds[0],), {**own, **parts})
    return kind(**{field.name: getattr(config, field.name) for field in fields(config)})
