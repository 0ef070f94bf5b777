"""8-bit floats with scales: rows of x and blocks of w are quantized, and multiplied as they are.

Each row of x is divided by its greatest magnitude over that of e4m3, each block of 128 x 128 of w
by its own; the product takes the scales as they lie. Compared with the product of what was
quantized, in float64, and with that of the numbers before. Then the kernel of Hopper's tensor cores
is executed instruction by instruction.
"""

import ml_dtypes
import numpy as np

import cute_gemm as cg

E4M3 = ml_dtypes.float8_e4m3fn
GREATEST = float(ml_dtypes.finfo(E4M3).max)


def main() -> None:
    random = np.random.default_rng(0)
    m, n, k = 48, 256, 384
    x, w = random.standard_normal((m, k), "f4"), random.standard_normal((n, k), "f4")

    scale_x = abs(x).max(axis=1, keepdims=True) / GREATEST  # (M, 1)
    blocks = w.reshape(n // 128, 128, k // 128, 128)
    scale_w = abs(blocks).max(axis=(1, 3)) / GREATEST  # (N / 128, K / 128)
    of_w = np.repeat(np.repeat(scale_w, 128, axis=0), 128, axis=1)
    qx, qw = (x / scale_x).astype(E4M3), (w / of_w).astype(E4M3)

    given = {"order": "C", "out_dtype": "float32", "scale_a": scale_x, "scale_b": scale_w}
    y = cg.gemm("NT", qx, qw, **given)
    exact = (qx.astype("f8") * scale_x) @ (qw.astype("f8") * of_w).T
    print(f"off by {abs(y - exact).max():.1e} of {abs(exact).max():.0f} by its sums,")
    print(f"and by {abs(y - x.astype('f8') @ w.T).max():.1e} by 8 bits for each number")

    plan = cg.plan("NT", qx, qw, **given, arch="sm_90a", kernel="sm90_wgmma", tile=(64, 64, 128),
                   warp_groups=1, backend="cpu")  # fmt: skip
    print(plan.why.partition(";")[0])
    executed = cg.gemm("NT", qx, qw, **given, arch="sm_90a", kernel="sm90_wgmma",
                       tile=(64, 64, 128), warp_groups=1, backend="interpreter")  # fmt: skip
    right = "right" if np.allclose(executed, exact, rtol=1e-3, atol=1e-3) else "WRONG"
    print(f"{plan.kernel}, executed instruction by instruction: {right}")


if __name__ == "__main__":
    main()
