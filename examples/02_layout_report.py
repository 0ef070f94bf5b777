"""Why a layout is slow: the reference kernel's loads for the four ops, and the fix.

``copy="mn_major"`` is the field reference's sm80 pipeline: one thread layout and a vector along M
or N for every operand, which suits only operands whose unit stride is there. ``copy="auto"`` lets
thread layout, vector direction and swizzle follow the strides. Nothing is compiled or run: the
report is computed from the layouts alone.
"""

import cute_gemm as cg
from cute_gemm.report.report import Report

SIZE = 4096
OPS = ("NT", "NN", "TN", "TT")


def table(copy: str) -> None:
    print(f'copy="{copy}"')
    print("      ---------- A ----------   ---------- B ----------")
    print("op    coalesced  bits  fetched   coalesced  bits  fetched")
    for op in OPS:
        report = analyze(op, copy)
        cells = []
        for name in "AB":
            (load,) = (row for row in report[name].rows if row.space == "global")
            verdict = "yes" if report[name].coalesced else "no"
            cells.append(f"{verdict:<9}  {load.bits:>4}  {1 / load.efficiency:>5.1f} x")
        print(f"{op}    {'    '.join(cells)}")
    print()


def analyze(op: str, copy: str) -> Report:
    return cg.analyze(
        op, m=SIZE, n=SIZE, k=SIZE, dtype="float16", kernel="sm80_pipeline", arch="sm_80", copy=copy
    )


def main() -> None:
    print(f"float16, {SIZE}^3, kernel sm80_pipeline on sm_80; fetched: bytes moved per byte used")
    print()
    table("mn_major")
    table("auto")
    print('The whole report of TN with copy="mn_major":')
    print()
    print(analyze("TN", "mn_major"))


if __name__ == "__main__":
    main()
