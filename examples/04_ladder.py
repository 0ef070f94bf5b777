"""The ladder from a naive kernel to TMA and wgmma: counts of the report, and measured speed.

The counts need no GPU. On one, every kernel is then checked against float64 and timed next to
cuBLAS, as `cute-gemm bench` does.

    python 04_ladder.py [SIZE]
"""

import sys
import textwrap

import cute_gemm as cg
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels import registry
from cute_gemm.measure.bench import bench
from cute_gemm.report.report import Report
from cute_gemm.run.driver import why_no_gpu

#: From this rung on the products are of float16, by tensor cores.
FIRST_OF_HALVES = "tensor_core"


def sectors(report: Report, operand: str) -> str:
    """Sectors that a request for an operand touches; with a star where fewer would do."""
    loads = [row for row in report[operand].rows if row.space == "global"]
    loads = [row for row in loads if row.direction == "load" and not row.at_edges]
    if any(row.instruction == "TMA" for row in loads):
        return "TMA "
    most = max(row.sectors or 0 for row in loads)
    return f"{most:.4g}{' ' if report[operand].coalesced else '*'}"


def figures(report: Report, size: int) -> str:
    """What is counted of one op: A's and B's sectors, bytes fetched, wavefronts and conflicts."""
    fetched = report.performance.traffic.requested_bytes / size**2
    shared = [row.launch for row in report.rows if row.space == "shared"]
    wavefronts = sum(launch.wavefronts or 0 for launch in shared) / size**2
    conflicts = sum(launch.conflicts or 0 for launch in shared) / size**2
    cells = f"{sectors(report, 'A'):>6}{sectors(report, 'B'):>5}{fetched:>9,.0f}"
    return f"{cells}{wavefronts:>8.3g}{conflicts:>7.3g}"


def predict(size: int) -> None:
    print(f"Counted of {size}^3, float32, from {FIRST_OF_HALVES} on float16, for NN and TN:")
    print(
        "sectors of a request for A and of one for B (* where fewer would do); and for each element"
    )
    print(
        "of C the bytes fetched, the wavefronts in shared memory, and of these the bank conflicts"
    )
    print()
    heads = "".join(f"  {op}: A    B    bytes   waves  confl" for op in ("NN", "TN"))
    print(f"{'kernel':<16}{heads}")
    refused = []
    gpu_rungs = [name for name in registry.LADDER if registry.get(name).runs_on == "gpu"]
    for name in gpu_rungs:
        halves = gpu_rungs.index(name) >= gpu_rungs.index(FIRST_OF_HALVES)
        problem = {"m": size, "n": size, "k": size, "dtype": "float16" if halves else "float32"}
        try:
            reports = [cg.analyze(op, **problem, kernel=name, arch="sm_90a") for op in ("NN", "TN")]
        except UnsupportedError as error:
            refused.append(f"{name}: {error}")
            continue
        print(f"{name:<16}{''.join(figures(report, size) for report in reports)}")
    for line in refused:
        print(textwrap.fill(line, 100))


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    predict(size)
    print()
    no_gpu = why_no_gpu()
    if no_gpu:
        print(f"Not measured: {no_gpu}")
    else:
        print(bench(sizes=[size]))


if __name__ == "__main__":
    main()
