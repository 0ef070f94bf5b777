"""Fused epilogues: what becomes of the sums before they are stored, written in Python.

A gated layer, ``silu(x @ w.T + bias) * up``, whose value before the gate and whose greatest
magnitude are results too: traced once, printed, computed by the kernel (on a GPU, or by NumPy where
there is none), compared with float64, and looked at: what the operands' loads cost, and what fusing
them saves. Without a GPU the kernel's own instructions are executed as well, on a small problem.
"""

from typing import Any

import numpy as np

import cute_gemm as cg


@cg.epilogue
def gate(acc: Any, bias: Any, up: Any, scale: Any) -> Any:
    z = acc + bias
    y = cg.silu(z) * up * scale
    return y, z, cg.amax(y)


def main() -> None:
    print(f"{gate.name}(acc, {', '.join(gate.expression.operands)})")
    print(gate.expression)
    print()

    random = np.random.default_rng(0)
    m, n, k = 192, 256, 128
    x, w = random.standard_normal((m, k), "f4"), random.standard_normal((n, k), "f4")
    operands = {"bias": random.standard_normal(n, "f4"), "up": random.standard_normal((m, n), "f4")}
    y, z, amax = cg.gemm("NT", x, w, order="C", epilogue=gate, scale=0.5, **operands)
    exact_z = x.astype("f8") @ w.T.astype("f8") + operands["bias"]
    exact = exact_z / (1 + np.exp(-exact_z)) * operands["up"] * 0.5
    print(f"y is off by {abs(y - exact).max():.1e}, z by {abs(z - exact_z).max():.1e}")
    print(f"amax {float(amax):.4f}, of float64 {abs(exact).max():.4f}")
    print()

    plan = cg.plan("NT", x, w, order="C", epilogue=gate, scale=0.5, **operands, backend="cpu")
    trace = plan.trace(x, w, scale=0.5, **operands)
    right = "right" if trace.verdict.ok else "WRONG"
    counted = "as predicted" if trace.agrees else "not as predicted"
    print(f"{plan.kernel}, executed instruction by instruction: {right}, accesses {counted}")
    print()

    sizes: dict[str, Any] = {"m": 4096, "n": 4096, "k": 1024, "dtype": "bfloat16", "order": "C"}
    sizes |= {"arch": "sm_90a", "gpu": "H200", "storage": "C", "scale": 0.5}
    report = cg.analyze("NT", **sizes, epilogue=gate, bias=(4096,), up=(4096, 4096))
    for row in report.rows:
        if row.operand not in "ABC":
            print(f"{row.operand:9s} {row.instruction} {row.bits} bits, {row.verdict}")
    print()
    print(report.headline)


if __name__ == "__main__":
    main()
