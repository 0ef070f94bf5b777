"""Keyword arguments that neither a function nor a kernel has: what is meant instead."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from cute_gemm.errors import OptionError
from cute_gemm.kernels import registry

_TRANSPOSED = re.compile("(trans|transpose|transposed|adj|adjoint|conj|op|t)[-_]?[ab]")


def check_names(
    function: Callable[..., Any], options: dict[str, Any], *others: Callable[..., Any]
) -> None:
    """Refuse an option that no kernel has, by what is nearest or by who has it.

    ``function`` takes the options beside arguments of its own; ``others`` have further ones.
    """
    if not options:
        return
    from cute_gemm.problem.epilogue.fuse import PARTS_WITH_OPERAND

    known = registry.options()
    for option in options:
        if option in known:
            continue
        own = parameters(function)
        having = [f"{other.__name__}()" for other in others if option in parameters(other)]
        if option in PARTS_WITH_OPERAND:
            hint = f"name it in epilogue=, as in epilogue={option!r}"
        elif option in ("out", "output"):
            hint = "pass the array to write to as C"
        else:
            hint = hint_for(option, (*own, *known))
        if not hint and having:
            hint = f"{' and '.join(having)} {'have one' if len(having) > 1 else 'has one'}"
        if not hint:
            hint = f"expected {', '.join(own)}, or an option of a kernel: {', '.join(known)}"
        raise OptionError(f"{function.__name__}() has no argument {option!r}; {hint}")


def hint_for(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return what to write in the place of an unknown word, ``""`` where none is near.

    >>> hint_for("stage", ("stages", "copy"), "--")
    'did you mean --stages?'
    """
    if _TRANSPOSED.fullmatch(word.lower()):
        return "the letters of op say what is transposed, as in TN"
    near = get_close_matches(word.lower(), known, 1, 0.7)
    return f"did you mean {prefix}{near[0]}?" if near else ""


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters."""
    named = inspect.signature(function).parameters.values()
    return [each.name for each in named if each.kind is not each.VAR_KEYWORD]


def with_parameters_of(
    inner: Callable[..., Any], function: Callable[..., Any]
) -> inspect.Signature:
    """Return the signature of a function that hands its further keywords to another."""
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()
    others = inspect.signature(inner).parameters.values()
    further = [each for each in others if each.name not in signature.parameters]
    return signature.replace(parameters=[*own, *further])
