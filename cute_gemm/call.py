"""``Call``: the checked arguments of a product other than arrays and numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from cute_gemm._text import hint_for
from cute_gemm.arrays.base import Operand, Order
from cute_gemm.errors import OptionError
from cute_gemm.kernels import registry
from cute_gemm.problem.describe import check_order, from_operands, from_sizes
from cute_gemm.problem.epilogue.fuse import (
    NOTHING,
    PARTS_WITH_OPERAND,
    EpilogueFunction,
    Operands,
    as_function,
    check_overlap,
    fuse,
    read_operands,
    sized_operands,
    takes_pairs,
    with_scales,
)
from cute_gemm.problem.epilogue.fused import Fused
from cute_gemm.problem.parts.groups import (
    DEVICE,
    UNCHECKED,
    UNWRITTEN,
    ZERO,
    check_words,
    from_group_sizes,
    from_groups,
)
from cute_gemm.problem.parts.scales import SCALES
from cute_gemm.problem.problem import GemmProblem

Backend = Literal["auto", "cuda", "cpu", "interpreter"]
Tune = bool | Literal["online"]


@dataclass(frozen=True)
class Call:
    """The arguments of `gemm` that are not arrays or numbers.

    ``epilogue`` is traced, and has the names of the scales of the call; ``options`` are pairs
    of a kernel's option and its value, by name.
    """

    op: str
    order: Order = "F"
    out_dtype: Any = None
    compute: str | None = None
    epilogue: EpilogueFunction | None = None
    kernel: str = "auto"
    backend: Backend = "auto"
    arch: str | None = None
    tail: str = UNWRITTEN
    check: str = UNCHECKED
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(
        cls, function: Callable[..., Any], words: tuple[Any, ...], keywords: dict[str, Any],
        others: tuple[Callable[..., Any], ...] = (), grouped: bool = False, **further: Any,
    ) -> tuple[Call, dict[str, Any]]:  # fmt: skip
        """Check the arguments of a function; return the call, and the epilogue's operands.

        Parameters
        ----------
        function
            The called function, which errors name.
        words
            The fields of a call except the options, with ``epilogue`` as given.
        keywords
            All other keyword arguments: scales, operands of the epilogue, options of kernels.
        others
            Functions with further arguments, for errors.
        grouped
            Whether the product has groups.
        further
            Other arguments that must have a hash.

        Raises
        ------
        OptionError
            For an unknown epilogue, a name that neither the function nor a kernel has, or a
            value without a hash.
        """
        given = dict(zip((each.name for each in fields(cls)), words, strict=False))
        epilogue, operands = epilogue_of(given.pop("epilogue"), keywords)
        takes_pairs(epilogue, grouped)
        check_names(function, keywords, *others)
        options = {x: tuple(y) if isinstance(y, list) else y for x, y in keywords.items()}
        _check_words("", {x: y for x, y in given.items() if x != "op"} | further, "a name")
        _check_words("option ", options, "a number, a name or a tuple of numbers")
        return cls(**given, epilogue=epilogue, options=tuple(options.items())), operands

    def describe(
        self, a: Operand, b: Operand, c: Operand | None = None, ends: Operand | None = None
    ) -> GemmProblem:
        """Return the product of arrays without epilogue; ``ends``: ends of its groups, if any.

        Raises what `from_operands` and `from_groups` raise.
        """
        words: dict[str, Any] = {"order": self.order, "compute": self.compute}
        words["out_dtype"] = self.out_dtype
        if ends is not None:
            return from_groups(self.op, a, b, ends, c, **words, tail=self.tail, check=self.check)
        self._check_no_groups()
        return from_operands(self.op, a, b, c, **words, pairs=takes_pairs(self.epilogue))

    def describe_sizes(
        self, operands: dict[str, Any], ragged: str | None, storage: Order, **sizes: Any
    ) -> tuple[GemmProblem, dict[str, Any]]:
        """Return the product of sizes, as `describe` does, and placeholders of the operands.

        ``sizes``: further arguments of `from_sizes` and `from_group_sizes`.
        """
        check_order(storage, "storage")
        words = {"order": self.order, "out_dtype": self.out_dtype, "compute": self.compute}
        words |= sizes | {"storage": storage}
        if ragged is None:
            self._check_no_groups()
            problem = from_sizes(self.op, **words, pairs=takes_pairs(self.epilogue))
        else:
            problem = from_group_sizes(
                ragged, words.pop("l"), op=self.op, tail=self.tail, check=self.check, **words
            )  # fmt: skip
        if self.epilogue is None:
            return problem, operands
        return problem, sized_operands(self.epilogue, operands, problem)

    def _check_no_groups(self) -> None:
        """Refuse arguments of groups without groups."""
        check_words(self.tail, self.check)
        for name, word, default in (
            ("tail", self.tail, UNWRITTEN), ("check", self.check, UNCHECKED)
        ):  # fmt: skip
            if word != default:
                raise OptionError(
                    f"{name}={word!r} came without groups: leave it out, or give offsets="
                )

    def fuse(
        self, problem: GemmProblem, given: Mapping[str, Any], device: int | None,
        c: Operand | None = None, ends: Operand | None = None,
    ) -> tuple[GemmProblem, Operands]:  # fmt: skip
        """Return the product with the epilogue, if there is one, and the operands after C.

        Raises what `read_operands` and `fuse` raise, and OverlapError if C shares memory with an
        operand.
        """
        operands = NOTHING
        if self.epilogue is not None:
            operands = read_operands(self.epilogue, given, problem, device)
            problem = fuse(problem, self.epilogue, operands)
            if c is not None:
                check_overlap(c, operands)
        return problem, operands if ends is None else operands.with_offsets(ends)

    @classmethod
    def like(cls, problem: GemmProblem) -> Call:
        """Return the call that makes this problem of arrays with its layouts."""
        blocks, epilogue = {x.name for x in problem.scales}, problem.epilogue
        scales = tuple(name for name in SCALES if name in blocks or name in epilogue.scales)
        function = with_scales(None, scales) if scales else None
        if isinstance(epilogue, Fused):
            function = EpilogueFunction(epilogue.label, epilogue.expression, scales)
        order: Order = "C" if problem.C.major == "N" else "F"
        tail = ZERO if problem.groups.zero_tail else UNWRITTEN
        check = DEVICE if problem.groups.checked else UNCHECKED
        return cls(
            problem.op, order, problem.C.dtype, problem.compute, function, tail=tail, check=check
        )


def given_scales(scale_a: Any, scale_b: Any) -> dict[str, Any]:
    """Return the scales of a call, by name."""
    given = zip(SCALES, (scale_a, scale_b), strict=True)
    return {name: value for name, value in given if value is not None}


def epilogue_of(
    value: Any, keywords: dict[str, Any]
) -> tuple[EpilogueFunction | None, dict[str, Any]]:
    """Return the epilogue of ``epilogue=``, and its operands, which leave the keywords."""
    scales = tuple(name for name in SCALES if name in keywords)
    if value is None and not scales:
        return None, {}
    function = None if value is None else as_function(value)
    if scales or function is None:
        function = with_scales(function, scales)
    names = function.operands
    taken = [name for name in names if name in registry.options()]
    if taken:
        raise OptionError(
            f"epilogue {function.name!r} has an operand called {taken[0]}, which is an option of "
            "kernels: rename it"
        )
    return function, {name: keywords.pop(name) for name in names if name in keywords}


def _check_words(kind: str, given: Mapping[str, Any], expected: str) -> None:
    """Refuse values without a hash, such as lists and arrays."""
    for name, value in given.items():
        try:
            hash(value)
        except TypeError:
            raise OptionError(f"{kind}{name}={value!r} does not fit; expected {expected}") from None


# ---- names of arguments -------------------------------------------------------------------------


def check_names(
    function: Callable[..., Any], options: dict[str, Any], *others: Callable[..., Any]
) -> None:
    """Refuse an option that no kernel has, with the nearest name or the functions that have it.

    ``function`` takes options and its own arguments; ``others`` have further arguments.
    """
    if not options:
        return
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


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters."""
    named = inspect.signature(function).parameters.values()
    return [each.name for each in named if each.kind is not each.VAR_KEYWORD]


def with_parameters_of(
    inner: Callable[..., Any], function: Callable[..., Any]
) -> inspect.Signature:
    """Return the signature of a function that passes its other keywords to another one."""
    signature = inspect.signature(function)
    own, others = signature.parameters, inspect.signature(inner).parameters
    *new, _ = (each for name, each in own.items() if name not in others)  # its own, its keywords
    handed_on = [own.get(name, each) for name, each in others.items()]
    first = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in handed_on)
    return signature.replace(parameters=[*handed_on[:first], *new, *handed_on[first:]])
