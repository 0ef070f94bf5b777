"""What `gemm` and layers keep between calls: plans, calls that passed every check, launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cute_gemm._kept import Kept

if TYPE_CHECKING:
    from cute_gemm.kernels.summation import OrderOfSummation
    from cute_gemm.plan.executable import RecentCall
    from cute_gemm.plan.plan import Plan

#: Plans that ``gemm`` made, by problem (a plan keeps its problem alive, so its id is its own).
plans: Kept[tuple[Any, ...], Plan] = Kept(1024, "plans")
#: Calls on device arrays that went through every check, by all that the checks look at, but where
#: the arrays lie.
recent_calls: Kept[Any, RecentCall] = Kept(1 << 14, "recent_calls")
#: Launches of products of `cute_gemm.torch`, by what is computed and how the tensors lie.
torch_launches: Kept[Any, Any] = Kept(1 << 14, "torch_launches")
#: Orders of sums of layers' products, by letters, layouts and alignments of the operands.
torch_orders: Kept[Any, OrderOfSummation] = Kept(1024, "torch_orders")
#: Launches of calls of `cute_gemm.jax`, by all that they depend on but addresses.
jax_launches: Kept[Any, Any] = Kept(1024, "jax_launches")


def drop() -> None:
    """Drop all of it: plans that were kept know nothing of a choice that was measured since."""
    for each in (plans, recent_calls, torch_launches, torch_orders, jax_launches):
        each.clear()
