"""Fit the cost model of the tutorial kernels to measured times.

    python tests/gpu/predicted.py --classes "naive;coalesced" --count 36 --seed 21 --json TIMES
    python tests/gpu/fit_tutorial.py [TIMES] [--write]

``cute-gemm calibrate`` fits the kernels that ``"auto"`` considers. This script fits the others,
each by type, starting from the package's calibration. The default ``TIMES`` is
``tests/data/h200-tutorial-times.json.gz``, with 36 problems of each kernel. For each kernel and
type the script prints the number of times, the root mean squared error before and after, and the
constants. ``--write`` stores them in the package's calibrations. It needs no GPU.
"""

import argparse
import gzip
import json
import re
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cute_gemm as cg
from cute_gemm.calibrate import fit
from cute_gemm.cost_model import calibration
from cute_gemm.cost_model.calibration import Calibration, Pace, decoded
from cute_gemm.gpus.table import gpu

#: Kernels, the fields of a `Pace` that are fitted, and the fewest times of a kernel and type.
KERNELS = (
    "naive", "coalesced", "smem_full_k", "smem_tiled", "register_rows", "thread_tile_1d",
    "thread_tile_2d", "vectorized", "bank_free", "warp_tiled", "tensor_core",
)  # fmt: skip
FIELDS, LEAST = ("slowdown", "latency", "serial", "start", "passes"), 4
GPU = "H200"
TIMES = Path(__file__).resolve().parents[1] / "data" / "h200-tutorial-times.json.gz"
FILES = ("h200", "h100-sxm", "prior")


def sample(entry: dict[str, Any]) -> fit.Sample:
    """Return a measured time of ``predicted.py`` with the counts of its config."""
    words = r"(\w\w) (\d+)x(\d+)x(\d+) (\S+) (\w) \+(\d+)"
    op, m, n, k, dtype, order, pad = re.fullmatch(words, entry["problem"]).groups()  # type: ignore
    m, n, k, pad = int(m), int(n), int(k), int(pad)
    dtype, _, compute = dtype.partition("/")
    plan = cg.plan(
        op, m=m, n=n, k=k, dtype=dtype, order=order, lda=(m if op[0] == "N" else k) + pad,
        ldb=(k if op[1] == "N" else n) + pad, kernel=entry["kernel"], arch="sm_90a", gpu=GPU,
        backend="cpu", **({"compute": compute} if compute else {}),
    )  # fmt: skip
    kernel = plan.candidates()[0].kernel.compiled()
    counts = kernel.counts(plan.config, plan.problem, gpu(GPU))
    return fit.Sample(kernel, plan.config, counts, plan.problem, None, 1, entry["measured"] * 1e-6)


def error(samples: list[fit.Sample], numbers: Calibration) -> float:
    """Return the root mean squared logarithm of predicted over measured time."""
    known = fit.SampleSet([[x] for x in samples], gpu(GPU))
    return float(np.sqrt(np.mean(np.log(known.predicted(numbers) / known.real) ** 2)))


def fitted(samples: list[fit.Sample], numbers: Calibration) -> Calibration:
    """Return the calibration, with the pace of one kernel and type fitted to these samples."""
    one, (kernel, kind) = samples[0], samples[0].kind
    now = numbers.pace(kernel, *one.kernel.kinds(one.config)) or one.kernel.paces.get(kind, Pace())
    values = {name: float(getattr(now, name)) for name in FIELDS}
    put = partial(fit._put_pace, kernel, kind, now)
    each = fit._Numbers(values, [True] * len(samples), put)
    known = fit.SampleSet([[x] for x in samples], gpu(GPU))
    return fit._solved(known, [each], numbers, lambda *_: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("times", type=Path, nargs="?", default=TIMES)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    groups: dict[tuple[str, str], list[fit.Sample]] = defaultdict(list)
    opened = gzip.open if given.times.suffix == ".gz" else open
    with opened(given.times, "rt", encoding="utf-8") as file:
        entries = json.load(file)["entries"]
    for entry in entries:
        if entry["kernel"] in KERNELS:
            one = sample(entry)
            groups[one.kind].append(one)
    shipped = calibration.shipped(GPU)
    assert shipped is not None
    numbers = replace(shipped, correction=None)  # the correction is not fitted to these kernels
    found = {}
    for (kernel, kind), samples in groups.items():
        if len(samples) < LEAST:
            continue
        after = fitted(samples, numbers)
        pace = found[kernel, kind] = after.paces[kernel][kind]
        said = ", ".join(f"{name} {getattr(pace, name):g}" for name in FIELDS)
        errors = f"{error(samples, numbers):.2f} -> {error(samples, after):.2f}"
        print(f"{kernel} {kind}: {len(samples)} times, {errors}: {said}")
    for name in FILES if given.write else ():
        path = Path(calibration.__file__).parent / "calibrations" / f"{name}.json"
        own = decoded(path.read_text(encoding="utf-8"))
        paces = {kernel: dict(rows) for kernel, rows in own.paces.items()}
        for (kernel, kind), pace in found.items():
            paces.setdefault(kernel, {})[kind] = pace
        path.write_text(replace(own, paces=paces).encoded(), encoding="utf-8")


if __name__ == "__main__":
    main()
