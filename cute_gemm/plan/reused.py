"""Objects that `gemm` and layers keep between calls: plans, checked calls, launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cute_gemm._kept import Kept

if TYPE_CHECKING:
    from cute_gemm.kernels.summation import OrderOfSummation
    from cute_gemm.plan.executable import RecentCall
    from cute_gemm.plan.plan import Plan

#: Plans that ``gemm`` made, by problem (a plan keeps its problem alive, so its id is unique).
plans: Kept[tuple[Any, ...], Plan] = Kept(1024, "plans")
#: Calls on device arrays that passed every check, by everything that the checks look at except
#: addresses.
recent_calls: Kept[Any, RecentCall] = Kept(1 << 14, "recent_calls")
#: Launches of products of `cute_gemm.torch`, by computation and layouts of the tensors.
torch_launches: Kept[Any, Any] = Kept(1 << 14, "torch_launches")
#: Orders of summation of layers' products, by letters, layouts and alignments of the operands.
torch_orders_of_summation: Kept[Any, OrderOfSummation] = Kept(1024, "torch_orders_of_summation")
#: Launches of calls of `cute_gemm.jax`, by everything that they depend on except addresses.
jax_launches: Kept[Any, Any] = Kept(1024, "jax_launches")


def drop() -> None:
    """Drop everything: plans that were kept do not know configs that were measured since."""
    for each in (plans, recent_calls, torch_launches, torch_orders_of_summation, jax_launches):
        each.clear()
