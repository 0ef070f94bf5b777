"""What ``torch.compile`` and ``torch.export`` see of a call: one operator, with a fake result.

`api` and `plan` import this module, and PyTorch by it, while PyTorch traces them, and only then.
The operators take what a schema can say, so keywords travel as a text of ``name=value``, as on the
command line.
"""

from __future__ import annotations

from typing import Any

import torch

from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError
from cute_gemm.frameworks.base import dtype_name
from cute_gemm.frameworks.torch import CALLED, refuse_grad
from cute_gemm.problem.fuse import EpilogueFunction, as_function

#: What both operators take beside the matrices.
_GIVEN = (
    "str op, Scalar alpha, Tensor? alpha_at, Scalar beta, Tensor? beta_at, str keywords, "
    "Tensor[] operands"
)


def call(op: str, A: Any, B: Any, C: Any, alpha: Any, beta: Any, keywords: dict[str, Any]) -> Any:
    """Put a call into the graph.

    ``keywords``: of `gemm`, or of a new C and a `Plan`'s number; those that are tensors are the
    epilogue's operands.
    """
    if keywords.pop("stream") is not None:
        raise OptionError(
            "stream cannot be given inside torch.compile or torch.export, whose code runs on "
            "PyTorch's current stream: leave it out"
        )
    # Here, since the operators have no gradient of their own: PyTorch's compiler would say so.
    matrices = {"A": A, "B": B, "C": C, "alpha": alpha, "beta": beta}
    for name, x in (*matrices.items(), *keywords.items()):
        if isinstance(x, torch.Tensor):
            refuse_grad(x, name)
    epilogue = keywords.get("epilogue")
    if isinstance(epilogue, EpilogueFunction):
        keywords["epilogue"] = epilogue.number
    elif not (epilogue is None or isinstance(epilogue, str)):
        raise OptionError(
            f"epilogue={epilogue!r} inside torch.compile or torch.export; expected a name, or a "
            "function that was traced before: epilogue = cute_gemm.epilogue(function)"
        )
    tensors = {name: x for name, x in keywords.items() if isinstance(x, torch.Tensor)}
    if tensors and epilogue is None and "plan" not in keywords:
        name = next(iter(tensors))
        raise OptionError(f"gemm() has no argument {name!r} that is a tensor: leave it out")
    words = {name: x for name, x in keywords.items() if x is not None and name not in tensors}
    words |= {"operands": ",".join(tensors)} if tensors else {}
    text = " ".join(f"{name}={_text(x)}" for name, x in words.items())
    given = op, *_factor(alpha), *_factor(beta), text, list(tensors.values())
    if C is None:
        return torch.ops.cute_gemm.gemm(A, B, *given)
    torch.ops.cute_gemm.gemm_(A, B, C, *given)
    return C


def _factor(value: Any) -> tuple[Any, Any]:
    """Return a number and None; of a tensor, which the operator reads, 1 and the tensor."""
    return (1, value) if isinstance(value, torch.Tensor) else (value, None)


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _read(keywords: str) -> dict[str, str]:
    return dict(text.split("=", 1) for text in keywords.split())


@torch.library.custom_op(
    "cute_gemm::gemm", mutates_args=(), schema=f"(Tensor A, Tensor B, {_GIVEN}) -> Tensor"
)
def gemm(A: Any, B: Any, *given: Any) -> Any:
    """Compute a new C."""
    return _run(A, B, None, *given)


@gemm.register_fake
def _(A: Any, B: Any, op: str, *given: Any) -> Any:
    keywords = _read(given[-2])
    m, n = A.shape[-2 if op[0] in "Nn" else -1], B.shape[-1 if op[1] in "Nn" else -2]
    operands = dtype_name(A.dtype)
    # What no kernel multiplies is refused when the graph runs.
    outputs = DTYPES[operands].outputs if operands in DTYPES else ()
    name = keywords.get("out_dtype") or next(iter(outputs), operands)
    shape: tuple[Any, ...] = (m, n)
    strides: tuple[Any, ...] = (1, m) if keywords["order"] == "F" else (n, 1)
    batches = [x.shape[0] for x in (A, B) if x.dim() == 3]
    if batches:
        shape, strides = (max(batches), *shape), (m * n, *strides)
    return torch.empty_strided(shape, strides, dtype=getattr(torch, name), device=A.device)


@torch.library.custom_op(
    "cute_gemm::gemm_",
    mutates_args=("C",),
    schema=f"(Tensor A, Tensor B, Tensor(a!) C, {_GIVEN}) -> ()",
)
def gemm_(A: Any, B: Any, C: Any, *given: Any) -> None:
    """Compute in place."""
    _run(A, B, C, *given)


@torch.no_grad()  # whether gradients are wanted was asked where the call was traced
def _run(
    A: Any, B: Any, C: Any, op: str, alpha: Any, alpha_at: Any, beta: Any, beta_at: Any,
    keywords: str, operands: list[Any],
) -> Any:  # fmt: skip
    factors = {"alpha": alpha if alpha_at is None else alpha_at}
    factors["beta"] = beta if beta_at is None else beta_at
    given: dict[str, Any] = _read(keywords)
    tensors = dict(zip(given.pop("operands", "").split(","), operands, strict=False))
    number = given.get("plan")
    epilogue = given.get("epilogue")
    if epilogue is not None:
        given["epilogue"] = function = CALLED.get(epilogue) or as_function(epilogue)
        names = function.expression.operands
        tensors |= {name: float(given.pop(name)) for name in names if name in given}
    if number is None:
        if given.pop("tune", None):
            factors["tune"] = True
        return CALLED["gemm"](op, A, B, C, **factors, **tensors, **given)
    plan = CALLED.get(number)
    if plan is None:
        raise OptionError(
            f"plan {number} of this graph is not in this process, or was dropped: keep the "
            "plan as long as the graph, or call gemm in it"
        )
    numbers = {name: float(given[name]) for name in plan.problem.epilogue.numbers}
    return plan(A, B, C, **factors, **tensors, **numbers)
