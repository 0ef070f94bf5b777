"""Grouped GEMM: experts of a layer, whose rows lie one behind the other, in one launch.

The ends of groups are on the device; no group is aligned or padded. Forward (ragged M), the
gradient of the weights (ragged K), and of the input, each compared with float64. Then a report of
what given sizes cost, and the kernel's own instructions executed, with its accesses beside it.
"""

from typing import Any

import numpy as np

import cute_gemm as cg


def off(found: Any, groups: list[Any]) -> str:
    """The greatest error, beside a loop over the groups in float64."""
    error = max(abs(found[part] - exact).max(initial=0.0) for part, exact in groups)
    return f"{found.shape}, off by {error:.1e}"


def main() -> None:
    random = np.random.default_rng(0)
    sizes = [37, 0, 101, 22]
    ends = np.cumsum(sizes).astype(np.int32)
    rows = [slice(end - size, end) for size, end in zip(sizes, ends.tolist(), strict=True)]
    m, n, k, groups = sum(sizes), 96, 64, len(sizes)
    x, w = random.standard_normal((m, k), "f4"), random.standard_normal((groups, n, k), "f4")
    bias = random.standard_normal((groups, 1, n), "f4")

    y = cg.grouped_gemm("NT", x, w, ends, order="C", epilogue="bias", bias=bias)
    exact = [(r, x[r].astype("f8") @ w[g].T + bias[g]) for g, r in enumerate(rows)]
    print(f"y  {off(y, exact)}")
    dy = random.standard_normal((m, n), "f4")
    dw = cg.grouped_gemm("TN", dy, x, ends, order="C")
    print(f"dw {off(dw, [(g, dy[r].astype('f8').T @ x[r]) for g, r in enumerate(rows)])}")
    dx = cg.grouped_gemm("NN", dy, w, ends, order="C")
    print(f"dx {off(dx, [(r, dy[r].astype('f8') @ w[g]) for g, r in enumerate(rows)])}")
    print()

    a, b = x.astype("f2"), w.astype("f2")
    plan = cg.plan("NT", a, b, offsets=ends, order="C", arch="sm_90a", kernel="sm90_wgmma",
                   tile=(64, 64, 64), warp_groups=1, backend="cpu")  # fmt: skip
    print(plan.report(offsets=ends).groups)
    trace = plan.trace(a, b, offsets=ends)
    right = "right" if trace.verdict.ok else "WRONG"
    counted = "as predicted" if trace.agrees else "not as predicted"
    print(f"{plan.kernel}, executed instruction by instruction: {right}, accesses {counted}")


if __name__ == "__main__":
    main()
