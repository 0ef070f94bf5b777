"""What ``torch.compile`` and ``torch.export`` see of a call: one operator, with a fake result.

`api` and `plan` come here while PyTorch traces them, and only then: this module imports it. The
operators take what a schema can say, so keywords travel as a text of ``name=value``, as on the
command line.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import torch

from cute_gemm.errors import OptionError
from cute_gemm.problem.arrays import dtype_name, refuse_grad
from cute_gemm.problem.problem import element_of
from cute_gemm.problem.scalars import ZERO, Scalar, check_beta

Tensor: TypeAlias = torch.Tensor
Number: TypeAlias = torch.types.Number


def call(op: str, A: Any, B: Any, C: Any, alpha: Any, beta: Any, keywords: dict[str, Any]) -> Any:
    """Put a call into the graph; ``keywords``: of `gemm`, or of a new C and a `Plan`'s number.

    A scalar on the device is a tensor that the operator reads; its value in the schema is then 1.
    """
    if keywords.pop("stream") is not None:
        raise OptionError(
            "stream cannot be given inside torch.compile or torch.export, whose code runs on "
            "PyTorch's current stream: leave it out"
        )
    # Here, since the operators have no gradient of their own: PyTorch's compiler would say so.
    for name, x in (("A", A), ("B", B), ("C", C), ("alpha", alpha), ("beta", beta)):
        if isinstance(x, torch.Tensor):
            refuse_grad(x, name)
    for name, x in keywords.items():
        if isinstance(x, torch.Tensor):
            raise OptionError(f"gemm() has no argument {name!r} that is a tensor: leave it out")
    text = " ".join(f"{name}={_text(x)}" for name, x in keywords.items() if x is not None)
    alpha, alpha_at = (1, alpha) if isinstance(alpha, torch.Tensor) else (alpha, None)
    beta, beta_at = (1, beta) if isinstance(beta, torch.Tensor) else (beta, None)
    if C is None:
        check_beta(ZERO if beta_at is None and beta == 0 else Scalar(beta), C)
        return torch.ops.cute_gemm.gemm(A, B, op, alpha, alpha_at, text)
    torch.ops.cute_gemm.gemm_(A, B, C, op, alpha, alpha_at, beta, beta_at, text)
    return C


def _text(value: Any) -> str:
    return "x".join(str(one) for one in value) if isinstance(value, (tuple, list)) else str(value)


def _read(keywords: str) -> dict[str, str]:
    return dict(text.split("=", 1) for text in keywords.split())


@torch.library.custom_op("cute_gemm::gemm", mutates_args=())
def gemm(
    A: Tensor, B: Tensor, op: str, alpha: Number, alpha_at: Tensor | None, keywords: str
) -> Tensor:
    """Compute a new C."""
    return _run(op, A, B, None, keywords, alpha=alpha if alpha_at is None else alpha_at)


@gemm.register_fake
def _(
    A: Tensor, B: Tensor, op: str, alpha: Number, alpha_at: Tensor | None, keywords: str
) -> Tensor:
    given = _read(keywords)
    m, n = A.shape[-2 if op[0] in "Nn" else -1], B.shape[-1 if op[1] in "Nn" else -2]
    name = given.get("out_dtype") or element_of("A", dtype_name(A.dtype)).outputs[0]
    shape: tuple[Any, ...] = (m, n)
    strides: tuple[Any, ...] = (1, m) if given["order"] == "F" else (n, 1)
    batches = [x.shape[0] for x in (A, B) if x.dim() == 3]
    if batches:
        shape, strides = (max(batches), *shape), (m * n, *strides)
    return torch.empty_strided(shape, strides, dtype=getattr(torch, name), device=A.device)


@torch.library.custom_op("cute_gemm::gemm_", mutates_args=("C",))
def gemm_(
    A: Tensor, B: Tensor, C: Tensor, op: str, alpha: Number, alpha_at: Tensor | None, beta: Number,
    beta_at: Tensor | None, keywords: str,
) -> None:  # fmt: skip
    """Compute in place."""
    factors = {"alpha": alpha if alpha_at is None else alpha_at}
    factors["beta"] = beta if beta_at is None else beta_at
    _run(op, A, B, C, keywords, **factors)


@torch.no_grad()  # whether gradients are wanted was asked where the call was traced
def _run(op: str, A: Any, B: Any, C: Any, keywords: str, **factors: Any) -> Any:
    given = _read(keywords)
    if given.pop("tune", None):
        factors["tune"] = True
    if "plan" not in given:
        # By name: it imports this module, when it is traced.
        return sys.modules["cute_gemm.api"].gemm(op, A, B, C, **factors, **given)
    plan = sys.modules["cute_gemm.plan"].PLANS.get(int(given["plan"]))
    if plan is None:
        raise OptionError(
            f"plan {given['plan']} of this graph is not in this process, or was dropped: keep the "
            "plan as long as the graph, or call gemm in it"
        )
    return plan(A, B, C, **factors)
