"""Test a kernel of one template, one module and one registry entry with all features."""

import itertools
import json

import fake_gpu
import numpy as np
import pytest
import toy_kernel
from cases import OPS

import cute_gemm as cg
from cute_gemm.commands import cli
from cute_gemm.commands.explain import explain
from cute_gemm.errors import OptionError, UnknownKernelError, UnsupportedError
from cute_gemm.kernels import registry
from cute_gemm.measure import bench
from cute_gemm.measure.profile import Case, predict
from cute_gemm.plan import select
from cute_gemm.problem.verify import verify
from cute_gemm.report.report import Report
from cute_gemm.run.driver import why_no_gpu
from cute_gemm.toolchain.nvrtc import build

TOY = {"kernel": "toy", "arch": "sm_80"}
SIZES = {"m": 70, "n": 9, "k": 13, "dtype": "float32"}
WORDS = ["-m", "70", "-n", "9", "-k", "13", "--dtype", "float32", "--arch", "sm_80"]


@pytest.fixture(autouse=True)
def row(monkeypatch):
    monkeypatch.setitem(registry.KERNELS, "toy", ("toy_kernel", "Toy"))


@pytest.fixture
def command(capsys):
    """Return a function: arguments -> standard output of a command that succeeds."""

    def call(*words: str) -> str:
        status = cli.main([*words])
        out, err = capsys.readouterr()
        assert status == 0, err
        return out

    return call


def test_it_is_known_by_its_name(command, monkeypatch):
    [info] = [info for info in cg.kernels() if info.name == "toy"]
    assert (info.minimum_cc, info.dtypes, info.options) == (80, ("float32", "float64"), ("unroll",))
    listed = command("kernels")
    assert f"toy: {toy_kernel.Toy.summary}" in listed and "--unroll" in listed
    monkeypatch.delitem(registry.KERNELS, "toy")
    with pytest.raises(UnknownKernelError, match="'toy'"):
        cg.plan("NN", **SIZES, **TOY)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gemm_with_a_beta(op, dtype):
    rng = np.random.default_rng(0)
    A = rng.random((70, 13) if op[0] == "N" else (13, 70)).astype(dtype)
    B = np.asfortranarray(rng.random((13, 9) if op[1] == "N" else (9, 13)).astype(dtype))
    C = np.asfortranarray(rng.random((70, 9)).astype(dtype))
    before = C.copy()
    given = {"kernel": "toy", "backend": "cpu"}
    plan = cg.plan(op, A, B, C, **given)
    assert cg.gemm(op, A, B, C, alpha=2, beta=-0.5, **given) is C and plan.kernel == "toy"
    assert verify(plan.problem, A, B, C, C=before, alpha=2, beta=-0.5).ok
    assert verify(plan.problem, A, B, plan(A, B)).ok


def test_what_it_refuses():
    with pytest.raises(UnsupportedError, match="does not take float16"):
        cg.plan("NN", **{**SIZES, "dtype": "float16"}, **TOY)
    for wrong, said in (({"unroll": 0}, "1 to 64"), ({"tile": (1, 1, 1)}, "expected unroll")):
        with pytest.raises(OptionError, match=said):
            cg.plan("NN", **SIZES, **TOY, **wrong)


def test_build_source_and_ptx(command):
    plan = cg.plan("TN", **SIZES, **TOY, unroll=2)
    assert plan.symbol == "toy_f32_f32_f32_tn_col_u2"
    assert 'include "toy.cuh"' in plan.source and "Gemm<float, true, true, false, 2>" in plan.source
    assert plan.resources.registers > 0 and plan.cubin[:4] == b"\x7fELF"
    assert plan.symbol in plan.ptx and ".visible .entry" in plan.ptx
    assert (plan.launch.grid, plan.launch.block, plan.launch.smem) == (27, 32, 0)
    emitted = command("emit", "TN", *WORDS, "--kernel", "toy", "--unroll=2")
    built_by, _, source = emitted.partition("\n")
    assert source == plan.source and built_by.startswith("// nvcc ")
    assert f"-I{toy_kernel.Toy.template.parent}" in built_by
    assert plan.symbol in command("compile", "TN", *WORDS, "--kernel", "toy", "--unroll", "2")


def test_the_template_is_part_of_the_key(tmp_path, monkeypatch):
    """Test that a build is reused for the same inputs, but not if the template has changed."""
    unroll = {"unroll": 3}
    text = toy_kernel.Toy.template.read_text()
    (tmp_path / "toy.cuh").write_text(text)
    first = cg.plan("NN", **SIZES, **TOY, **unroll).build
    monkeypatch.setattr(toy_kernel.Toy, "template", tmp_path / "toy.cuh")
    unit = cg.plan("NN", **SIZES, **TOY, **unroll).unit
    assert build(unit, "sm_80").cubin == first.cubin
    (tmp_path / "toy.cuh").write_text(text.replace("sum[0] +=", "sum[0] -="))
    assert build(unit, "sm_80").cubin != first.cubin


def counted(op: str, beta: float, m: int, n: int, k: int, size: int) -> dict[str, int]:
    """Return requests and sectors of loads and stores, computed with the loops of the template."""
    lda, ldb = (m if op[0] == "N" else k), (k if op[1] == "N" else n)
    of_a = (1, lda) if op[0] == "N" else (lda, 1)
    of_b = (ldb, 1) if op[1] == "N" else (1, ldb)
    loads, stores = [], []
    for first, column in itertools.product(range(0, m, 32), range(n)):
        rows = np.arange(first, min(first + 32, m))
        for i in range(k):
            loads.append(rows * of_a[0] + i * of_a[1])
            loads.append(np.array([column * of_b[0] + i * of_b[1]]))
        stores.append(rows + column * m)
        loads += [stores[-1]] if beta else []
    found = {}
    for name, requests in (("loads", loads), ("stores", stores)):
        found[f"global {name} requests"] = len(requests)
        found[f"global {name} sectors"] = sum(len(set(each * size // 32)) for each in requests)
    return found


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("dtype", "beta"), [("float32", 0), ("float64", 2)])
def test_what_profile_predicts_is_what_its_loops_do(op, dtype, beta):
    found = predict(Case(op, 70, 9, 13, dtype, beta=beta, **TOY))
    assert {name: count for name, count in found.items() if count} == counted(
        op, beta, 70, 9, 13, 4 if dtype == "float32" else 8
    )


def test_report(command):
    report = cg.analyze("TN", **SIZES, **TOY, beta=1)
    assert [row.operand for row in report.rows] == ["A", "B", "C", "C"]
    assert not report["A"].coalesced and report["B"].coalesced
    assert cg.analyze("NT", **{**SIZES, "m": 64}, **TOY)["A"].coalesced
    assert "the tile has only 1 element along K" in report.findings[0]
    found = report.to_dict()
    assert found["kernel"] == "toy" and found["config"]["unroll"] == 4
    assert found["operands"]["A"] == {"coalesced": False, "conflict_free": True}
    assert found["performance"]["per_result"]["global_stores"] == 1
    assert found["candidates"][0]["config"] == report.config.name
    assert len(found["fixes"]) == len(report.rows)
    text = str(report)
    assert "kernel toy" in text and "Predicted on" in text and "32x1x1" in text
    page = report.to_html()
    assert report.config.name in page.replace("<wbr>", "") and page.count("<svg") >= 3
    said = json.loads(command("analyze", "TN", *WORDS, "--kernel", "toy", "--json"))
    assert said == json.loads(cg.analyze("TN", **SIZES, **TOY).to_json())


def test_report_of_a_batch_and_odd_storage():
    plan = cg.plan("NN", **SIZES, **TOY, l=3, batch_b=0, order="C", lda=71)
    assert isinstance(plan.report(gpu="A100"), Report) and plan.launch.batch == 3
    assert "true" in plan.source  # C is row-major


def test_its_prediction_is_compared_with_others(monkeypatch):
    plan = cg.plan("NN", **SIZES, **TOY)
    [only] = plan.candidates()
    assert only.prediction.seconds > 0 and "L1" in only.prediction.terms
    assert plan.why.startswith("asked for by name; ") and "predicted" in plan.why
    monkeypatch.setattr(registry, "CONTENDERS", ("toy", "double_buffered"))
    monkeypatch.setattr(select, "_classes", {})
    chosen = cg.plan("NN", **SIZES, arch="sm_80")
    assert {one.kernel.name for one in chosen.candidates()} == {"toy", "double_buffered"}


def test_explain(command):
    found = explain("toy", "TN", **SIZES, arch="sm_80", beta=1)
    assert found.idea.startswith("None at all. What a newcomer writes first")
    assert [(one.space, one.operand, one.elements) for one in found.counts if one.operand != "AB"]
    assert found.prediction.terms["L1"] > found.prediction.terms["CUDA cores"] and found.next == ()
    assert json.loads(json.dumps(found.to_dict()))["kernel"] == "toy"
    said = command("explain", "toy", "TN", *WORDS, "--show", "source,ptx")
    assert "The idea" in said and "Predicted time" in said
    assert toy_kernel.Toy.template.read_text() in said and ".visible .entry" in said


@pytest.mark.skipif(not why_no_gpu(), reason="the CPU computes only where there is no GPU")
def test_run(command):
    words = ["run", "NT", *WORDS, "--kernel", "toy", "--beta", "0.5"]
    said = command(*words)
    assert "toy_f32_f32_f32_nt_col_u4" in said and "all within" in said
    found = json.loads(command(*words, "--json"))
    assert found["check"]["ok"] and found["build"]["symbol"] == "toy_f32_f32_f32_nt_col_u4"


def test_bench(monkeypatch):
    gpu = fake_gpu.install(monkeypatch)

    def bind(self, config, problem, arch, device, *scalars):
        return lambda place: gpu.run("toy", "good", 4.0, problem, place)

    monkeypatch.setattr(toy_kernel.Toy, "bind", bind)
    names = {
        kernels: [row.kernel for row in bench.asked(kernels, {})] for kernels in ("ladder", "all")
    }
    assert "toy" not in names["ladder"] and "toy" in names["all"]
    found = bench.bench(OPS, "toy", [(70, 9, 13)], rounds=2)
    [size] = found.sizes
    assert found.ok and size.kernels == ("toy", "cublas")
    assert size.find("toy", "TN").config == "toy_f32_f32_f32_tn_col_u4"
    assert size.find("toy", "TN").speed.of_cublas == pytest.approx(0.5)
    assert "toy" in str(found) and found.to_dict()
