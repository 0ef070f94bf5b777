"""Test that type checkers know every argument of public functions, and the type of the result."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cute_gemm as cg
import cute_gemm.jax
from cute_gemm import signatures
from cute_gemm.kernels import registry

ROOT = Path(__file__).parents[2]


def test_the_options_are_those_of_the_kernels() -> None:
    assert set(signatures.KernelOptions.__annotations__) == set(registry.options())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (cg.gemm, signatures.GemmWords), (cg.grouped_gemm, signatures.GroupedWords),
        (cg.plan, signatures.PlanWords), (cg.analyze, signatures.AnalyzeWords),
        (cute_gemm.jax.gemm, signatures.JaxWords),
    ],
    ids=["gemm", "grouped_gemm", "plan", "analyze", "jax"],
)  # fmt: skip
def test_keyword_arguments_are_those_of_the_function(
    function: Callable[..., Any], words: Any
) -> None:
    expected = {
        each.name: each.annotation
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name != "epilogue"
    }
    further = signatures.KernelOptions.__annotations__ | signatures.NamedOperands.__annotations__
    given = {
        name: annotation.__forward_arg__
        for name, annotation in words.__annotations__.items()
        if name not in further
    }
    assert given == expected


STUBS = {
    "torch": "class dtype: ...\n"
    "class Tensor:\n    def __dlpack__(self, *, stream: int | None = -1) -> object: ...\n",
    "jax": "class Array:\n    def __dlpack__(self, *, stream: int | None = None) -> object: ...\n",
    "cupy": "class ndarray:\n"
    "    @property\n    def __cuda_array_interface__(self) -> dict[str, object]: ...\n",
}
#: Modules whose types are checked. Following the imports of the others takes a minute.
FOLLOWED = (
    "cute_gemm", "cute_gemm.api", "cute_gemm.arrays.base", "cute_gemm.call", "cute_gemm.jax",
    "cute_gemm.problem.epilogue.functions", "cute_gemm.problem.epilogue.fuse",
    "cute_gemm.signatures", "cute_gemm.torch",
)  # fmt: skip
CONFIG = f"""[mypy]
mypy_path = {{stubs}}:{ROOT}
warn_unused_ignores = True
[mypy-cute_gemm.*]
follow_imports = skip
[mypy-{",".join(FOLLOWED)}]
follow_imports = silent
"""
#: Each line with a comment is an error, and each line without one is not.
CALLS = """
from typing import Any

import cupy
import jax
import numpy as np
import torch
from typing_extensions import assert_type

import cute_gemm as cg
import cute_gemm.jax
import cute_gemm.torch

x: np.ndarray[tuple[int, int], np.dtype[np.float16]]
t: torch.Tensor
j: jax.Array
c: cupy.ndarray
options: dict[str, Any] = {}


@cg.epilogue
def leaky(acc: Any, slope: Any) -> Any:
    return cg.maximum(acc, acc * slope)


assert_type(cg.gemm("NN", x, x), np.ndarray[tuple[Any, ...], np.dtype[Any]])
assert_type(cg.gemm("NN", t, t), torch.Tensor)
assert_type(cg.gemm("NN", j, j), jax.Array)
assert_type(cg.gemm("NN", c, c, c, beta=1), cupy.ndarray)
assert_type(cg.grouped_gemm("NN", t, t, t, tail="zero"), torch.Tensor)
assert_type(cute_gemm.jax.gemm("NN", j, j, tile="128x128x32"), jax.Array)
assert_type(cute_gemm.torch.linear(t, t, activation="relu"), torch.Tensor)
cg.gemm("NN", t, t, out_dtype="float32", tile=(128, 128, 32), stages=4, split_k="auto", pack="B")
cg.gemm("NN", t, t, kernel="sm90_wgmma", cluster=(2, 1), batch_invariant=True, compute="tf32")
cg.gemm("NN", t, t, epilogue="bias+gelu", bias=t)
cg.gemm("NN", t, t, epilogue=leaky, slope=0.1, stages=4)
cg.gemm("NN", t, t, epilogue=lambda acc, slope: acc * slope, slope=0.1)
cg.gemm("NN", t, t, **options)
cg.plan("TN", m=1, n=1, k=1, dtype="float16", lda=8, arch="sm_90a", copy="mn_major").report()
cg.analyze("TN", m=1, n=1, k=1, dtype="float16", beta=1.0)["A"]
cute_gemm.torch.linear(t, t, t, leaky, slope=0.1)
cute_gemm.torch.linear(t, t, activation=leaky, slope=0.1)

cg.gemm("NN", x, x, dtpe="float16")  # type: ignore[call-overload]
cg.gemm("NN", x, x, stage=4)  # type: ignore[call-overload]
cg.gemm("NN", x, x, pack="C")  # type: ignore[call-overload]
cg.gemm("NN", x, x, order="R")  # type: ignore[call-overload]
cg.gemm("NN", [[1.0]], x)  # type: ignore[call-overload]
cg.gemm("NN", x)  # type: ignore[call-overload]
cg.grouped_gemm("NN", t, t, t, tune=True)  # type: ignore[call-overload]
cg.plan("NN", m=1, n=1, k=1, dtype="float16", lad=8)  # type: ignore[call-overload]
cg.analyze("NN", m=1, n=1, k=1, dtype="float16", alpha=2)  # type: ignore[call-overload]
cute_gemm.jax.gemm("NN", j, j, order="F")  # type: ignore[call-overload]
cute_gemm.torch.linear(t, t, batch_invarian=True)  # type: ignore[call-overload]
"""


def test_calls_are_checked(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy checks the calls")
    for name, text in STUBS.items():
        (tmp_path / "stubs" / name).mkdir(parents=True)
        (tmp_path / "stubs" / name / "__init__.pyi").write_text(text)
    (tmp_path / "mypy.ini").write_text(CONFIG.format(stubs=tmp_path / "stubs"))
    (tmp_path / "calls.py").write_text(CALLS)
    command = [sys.executable, "-m", "mypy", "--cache-dir", "/dev/null", "calls.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
