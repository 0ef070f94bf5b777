"""The pipeline kernel at work: the four ops, compiled, checked, timed, and its report.

On a GPU each op is timed with both copy policies against cuBLAS, when a cuBLAS is installed;
without one the kernels are still compiled and the results come from the CPU.

    python 03_sm80_pipeline.py [SIZE]
"""

import sys

import numpy as np

import cute_gemm as cg
from cute_gemm.measure.timed import time_plan
from cute_gemm.problem.verify import verify
from cute_gemm.run.driver import why_no_gpu


def main() -> None:
    no_gpu = why_no_gpu()
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 512 if no_gpu else 4096
    policies = ("auto",) if no_gpu else ("auto", "mn_major")
    if no_gpu:
        print(f"no GPU ({no_gpu}): compiled for sm_80, computed on the CPU")
    rng = np.random.default_rng(0)
    A = np.asfortranarray(rng.standard_normal((size, size), np.float32).astype(np.float16))
    B = np.asfortranarray(rng.standard_normal((size, size), np.float32).astype(np.float16))

    for op in ("NN", "NT", "TN", "TT"):
        for copy in policies:
            C = np.full((size, size), np.nan, np.float16, order="F")
            plan = cg.plan(
                op, A, B, C, kernel="sm80_pipeline", arch="sm_80" if no_gpu else None, copy=copy
            )
            plan(A, B, C)

            verdict = verify(plan.problem, A, B, C)
            if not verdict.ok:
                raise SystemExit(f"{op}: {verdict.wrong} elements are wrong")
            used = plan.resources
            print(
                f'{op} {size}^3 copy="{copy}": {used.registers} registers, '
                f"{plan.launch.smem} bytes of shared memory; largest error "
                f"{verdict.max_error:.2g}, {verdict.max_ratio:.2f} of its bound"
            )
            if not no_gpu:
                print(f"   {time_plan(plan, A, B, C)}")
    print()
    print(cg.plan("TN", A, B, kernel="sm80_pipeline", arch="sm_80" if no_gpu else None).report())


if __name__ == "__main__":
    main()
