"""Record the benchmarks of the documentation: ``python docs/record.py OUTDIR [NAME...]``.

Runs commands on a machine with a GPU, one after the other, and writes each to ``OUTDIR/NAME.json``:

``command``
    What was run.
``machine``
    ``gpu``, ``driver``, ``cuda`` (of the driver) and ``cublas``: names and versions.
``commit``, ``date``
    Of the sources, and of the day.
``text``
    What the command printed.
``result``
    Its JSON.

Those of ``docs/data`` are what `benchmarks_page.py` shows, and ``cute-gemm bench --from FILE``
prints and draws. A run that fails is reported, and the others go on; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: Seconds after which a run is stopped.
LIMIT = 300
#: Types by the names of their runs. Of 8192 the check in float64 takes longest: it is left out.
_TYPES = {
    "float16": "--dtype float16", "bfloat16": "--dtype bfloat16", "float32": "--dtype float32",
    "tf32": "--dtype float32 --compute tf32", "int8": "--dtype int8",
}  # fmt: skip
#: Sizes of types; of float16 and float32 the runs of the ladder have 4096.
_SIZES = dict.fromkeys(_TYPES, "1024,4096,8192") | dict.fromkeys(
    ("float16", "float32"), "1024,8192"
)
_SLOW_TYPES = ("float64", "complex64", "complex128")
_BESIDE = "cute-gemm bench --kernel auto,cublas"
_LADDER = (
    "auto,host,naive,coalesced,smem_full_k,smem_tiled,register_rows,thread_tile_1d,thread_tile_2d,"
    "vectorized,bank_free,warp_tiled,double_buffered,sm80_pipeline,cublas"
)
_LAYOUTS = "python tests/gpu/layouts.py --seed 1134 --rounds 5 --dtypes"
#: Classes of the layouts that are drawn, by type.
_CLASSES = {
    "bfloat16": "aligned:40,DeepBench:36,models:20,odd ld:7,odd base:7,both:6,batch:20,"
    "few rows:10,short k:10,one round:10",
    "float32": "aligned:24,odd ld:4,odd base:4,both:4,batch:12",
    "float64": "aligned:20,odd ld:5,odd base:5,batch:10",
    **dict.fromkeys(("complex64", "complex128"), "aligned:16,odd ld:4,odd base:4,batch:8"),
}

#: The runs in order, the most important first: about five minutes on an H200 with 16 cores.
RUNS = {
    "ladder": f"cute-gemm bench --kernel {_LADDER} --sizes 1024,4096,1000x1003x1001 --rounds 5",
    **{
        name: f"{_BESIDE} --sizes {_SIZES[name]} {words} --rounds 5 --no-check"
        for name, words in _TYPES.items()
    },
    **{name: f"{_BESIDE} --sizes 4096 --dtype {name} --rounds 5" for name in _SLOW_TYPES},
    "odd": f"{_BESIDE} --dtype bfloat16 --sizes 4096,4095x4097x4093 --pad 1 --rounds 5",
    "ladder_float16": "cute-gemm bench --kernel auto,tensor_core,sm80_pipeline,sm90_wgmma,cublas "
    "--sizes 4096 --dtype float16 --rounds 5",
    **{
        f"layouts-{name}": f'{_LAYOUTS} {name} --classes "{classes}"'
        for name, classes in _CLASSES.items()
    },
    "pipeline": "cute-gemm bench --kernel sm80_pipeline,cutlass_universal,cublas --sizes 4096 "
    "--dtype float16 --rounds 5",
    "batch-float16": f"{_BESIDE} -l 64 --sizes 512 --dtype float16 --rounds 5",
    "batch-float32": f"{_BESIDE} -l 64 --sizes 512 --dtype float32 --rounds 5",
    "epilogues-bfloat16": "python tests/gpu/epilogues.py --dtypes bfloat16 --random 40 --seed 1",
    "epilogues-float32": "python tests/gpu/epilogues.py --dtypes float32 --random 12 --seed 1",
    "host": "python tests/gpu/host.py",
    "predicted": "python tests/gpu/predicted.py --count 10 --seed 11",
    # With a checkout of DeepGEMM: see there.
    "deepgemm": "python tests/gpu/deepgemm.py --deepgemm DeepGEMM",
    "deepgemm-h100": "python tests/gpu/deepgemm.py --deepgemm DeepGEMM",
    # With QuACK installed: pip install "quack-kernels[cu13]".
    "epilogues-quack": "python tests/gpu/epilogues.py --dtypes bfloat16 --random 0 --quack 7",
}


def machine() -> dict[str, str | None]:
    """Return names and versions of the GPU, its driver, and the libraries; None: not known."""
    from cute_gemm.errors import GemmError

    found: dict[str, str | None] = dict.fromkeys(("gpu", "driver", "cuda", "cublas"))
    try:
        from cute_gemm.measure.timed import machine as entered
        from cute_gemm.run.driver import checked, load_driver

        with entered(0) as gpu:
            found |= {"gpu": gpu.name, "cublas": gpu.about_cublas}
        (version,) = checked(load_driver().cuDriverGetVersion(), "reading the driver's version")
        found["cuda"] = f"{version // 1000}.{version % 1000 // 10}"
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
        found["driver"] = _said(*query) or None
    except GemmError as error:
        print(f"machine: {error}", flush=True)
    return found


def _said(*words: str) -> str:
    """What a command prints; nothing where it fails or is not there."""
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def record(command: str, file: Path) -> tuple[int, dict[str, Any] | None]:
    """Run a command; return its exit status, and its text and result, None where it wrote none."""
    program, *words = shlex.split(command)
    # Scripts of tests/gpu write their JSON to the file of --json.
    start, option = (["-m", "cute_gemm"], "--output") if program == "cute-gemm" else ([], "--json")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    }
    with tempfile.TemporaryDirectory() as directory:
        found = Path(directory) / file.name
        try:
            done = subprocess.run(
                [sys.executable, *start, *words, option, str(found)], cwd=ROOT, env=environment,
                stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return 124, None
        if not found.exists():
            return done.returncode, None
        # A ratio to what cuBLAS refuses is no number.
        result = json.loads(found.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    return done.returncode, {"text": done.stdout, "result": result}


def main(arguments: list[str] | None = None) -> int:
    """Record all runs, or those that are named; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", metavar="OUTDIR", type=Path)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--commit", help="of the sources, where there is no git (default: HEAD's)")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in RUNS]
    if unknown:
        parser.error(f"no run is called {', '.join(unknown)}; expected some of {', '.join(RUNS)}")
    given.directory.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))
    about = {
        "machine": machine(),
        "commit": given.commit or _said("git", "rev-parse", "--short", "HEAD") or None,
        "date": date.today().isoformat(),
    }
    failed = []
    for name in given.names or RUNS:
        began, file = time.perf_counter(), given.directory / f"{name}.json"
        status, found = record(RUNS[name], file)
        took = f"{time.perf_counter() - began:.0f} s"
        if found is not None:
            values = {"command": RUNS[name], **about, **found}
            file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        if status or found is None:
            failed.append(name)
            took = f"FAILED after {took}, exit status {status}"
        print(f"{name}: {took}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
