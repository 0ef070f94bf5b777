"""A kernel of your own: a template, a class and a row, executed and checked without a GPU.

`toy.cuh` is the template and `toy_kernel.py` the class, both beside this file.
"""

import numpy as np

import cute_gemm as cg
from cute_gemm.kernels import registry

# A program adds the row of its kernel itself.
registry.KERNELS["toy"] = ("toy_kernel", "Toy")

rng = np.random.default_rng(0)
A = np.asfortranarray(rng.standard_normal((64, 13)).astype(np.float32))
B = np.asfortranarray(rng.standard_normal((13, 9)).astype(np.float32))

plan = cg.plan("NN", A, B, kernel="toy", arch="sm_80", backend="cpu")
print(plan.unit.source)

# Each instruction of each thread is executed; C is compared with float64, accesses with the report.
trace = plan.trace(A, B)
print("right:", trace.verdict.ok, "  as reported:", trace.agrees, end="\n\n")

print("operand  instruction  sectors  ideal  verdict")
for row in plan.report().rows:
    figures = f"{row.sectors:7.1f}  {row.ideal_sectors:5.1f}"
    print(f"{row.operand:7}  {row.instruction:11}  {figures}  {row.verdict}")
