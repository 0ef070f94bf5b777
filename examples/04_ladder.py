"""The road from a naive kernel to cuBLAS: what the report predicts of each step, and the clock.

The prediction needs no GPU. On one, every kernel is then checked against float64 and timed next to
cuBLAS, as `cute-gemm bench` does.

    python 04_ladder.py [SIZE]
"""

import sys
import textwrap

import cute_gemm as cg
from cute_gemm.analysis.report import Report
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels import registry
from cute_gemm.measure.bench import OPS, bench
from cute_gemm.run.driver import why_no_gpu


def sectors(report: Report, operand: str) -> str:
    """Sectors that a request for an operand touches; with a star where fewer would do."""
    loads = [row for row in report[operand].rows if row.space == "global"]
    loads = [row for row in loads if row.direction == "load" and not row.at_edges]
    most = max(row.sectors or 0 for row in loads)
    return f"{most:.4g}{' ' if report[operand].coalesced else '*'}"


def predict(size: int) -> None:
    print(
        f"Predicted for float32 {size}^3: elements of A and B loaded per element of C, from global"
    )
    print("and from shared memory; for each op the sectors of a request for A and of one for B (*")
    print("where fewer would do), and the kilobytes fetched per element of C")
    print()
    heads = "".join(f"  {op}: A   B     kB" for op in OPS)
    print(f"{'kernel':<17}{'global':>7}{'shared':>7}{heads}")
    refused = []
    for name in registry.names():
        if registry.get(name).runs_on != "gpu":
            continue
        cells, elements = [], (0.0, 0.0)
        try:
            for op in OPS:
                report = cg.analyze(
                    op, m=size, n=size, k=size, dtype="float32", kernel=name, arch="sm_90a"
                )
                each = report.performance.per_result
                elements = max(elements, (each.global_loads, each.shared_loads or 0.0))
                fetched = report.performance.traffic.requested_bytes / size**2 / 1e3
                cells.append(f"{sectors(report, 'A'):>7}{sectors(report, 'B'):>4}{fetched:>7.2f}")
        except UnsupportedError as error:
            refused.append(f"{name}: {error}")
            continue
        print(f"{name:<17}{elements[0]:>7,.0f}{elements[1]:>7,.0f}{''.join(cells)}")
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
