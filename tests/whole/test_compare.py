"""Test the comparison of two plans, and ``cute-gemm compare``."""

import json
from typing import Any

import fake_gpu
import pytest
from command_line import SIZES

import cute_gemm as cg
from cute_gemm.kernels.library.cublas import CublasError
from cute_gemm.kernels.options import assignments, option_value
from cute_gemm.measure.compare import compare
from cute_gemm.toolchain.sass import instructions

WORDS = ["compare", *SIZES, "--arch", "sm_80"]


def made(op: str = "TN", **more: Any) -> cg.Plan:
    given = {"m": 256, "n": 256, "k": 128, "dtype": "float16", "arch": "sm_80", "backend": "cpu"}
    return cg.plan(op, **{**given, **more})


# -- figures ----------------------------------------------------------------------------------


def test_configs_side_by_side():
    a, b = (
        made(kernel="sm80_pipeline", copy=copy, tile=(128, 128, 32))
        for copy in ("auto", "mn_major")
    )
    both = compare(a, b, given=("copy=auto", "copy=mn_major"))
    assert both.figures["config.copy"] == ("auto", "mn_major")
    report = b.report()
    (row,) = (x for x in report["A"].rows if (x.space, x.direction) == ("global", "load"))
    for name, figure in (
        ("bits", row.bits), ("sectors", row.sectors), ("verdict", row.verdict),
        ("launch.sectors", row.launch.sectors),
    ):  # fmt: skip
        values = both.figures[f"accesses[A global load].{name}"]
        assert values[1] == figure and (values[0] != figure or name == "sectors")
    text = str(both)
    assert "copy=mn_major" in text and "16" in text and "verdict" in text
    assert max(map(len, text.splitlines())) <= 112 and "\x1b" not in text


def test_every_access_is_there_once():
    a, b = made(), made(kernel="sm80_pipeline", lda=131, pack="A")
    figures = compare(a, b).figures
    for at, plan in enumerate((a, b)):
        report = plan.report()
        rows = [*report.rows, *(row for each in report.auxiliary for row in each.rows)]
        named = [x[at] for name, x in figures.items() if name.endswith(".instruction")]
        assert sorted(filter(None, named)) == sorted(row.instruction for row in rows)
    packs = [x for name, x in figures.items() if name.startswith("auxiliary[pack].accesses[A")]
    assert packs and all(x[0] is None and x[1] is not None for x in packs)


def test_sides_exchanged_have_the_same_figures():
    plans = [
        made(), made(kernel="naive"), made(m=257, n=129, k=101), made(arch="sm_90a"),
        made(kernel="sm80_pipeline", split_k=2), made(kernel="cublas"),
    ]  # fmt: skip
    for a, b in zip(plans, plans[1:] + plans[:1], strict=True):
        there, back = compare(a, b).figures, compare(b, a).figures
        assert there == {name: pair[::-1] for name, pair in back.items()}


def test_beta_is_predicted():
    sizes = {"m": 4096, "n": 4096, "k": 64}
    plain, with_beta = (compare(made(**sizes), made(**sizes), beta=beta) for beta in (0, 1))
    assert with_beta.figures["predicted.seconds"][0] > 1.2 * plain.figures["predicted.seconds"][0]


def test_what_is_equal_is_not_shown():
    same = compare(made(), made())
    assert not same.differing
    lines = str(same).splitlines()
    assert lines[-1] == f"{len(same.figures)} figures are equal on both sides and not shown."
    assert not any("b / a" in line for line in lines)


def test_a_library_has_no_accesses():
    both = compare(made(kernel="sm80_pipeline"), made(kernel="cublas"))
    assert "are not known" in both.b.missing[0] and both.figures["kernel"][1] == "cublas"
    assert "accesses[A global load].sectors" in both.figures and "sectors" not in str(both)
    assert "are not known" in " ".join(str(both).split())


def test_builds_and_instructions():
    a, b = (made(kernel="naive", dtype="float32", op=op) for op in ("NN", "TT"))
    assert "resources.registers" not in compare(a, b).figures
    both = compare(a, b, sass=True)
    assert both.figures["resources.registers"][0] == a.resources.registers
    counts = dict(instructions(b.sass))
    mix = {name: x[1] for name, x in both.figures.items() if name.startswith("instructions.")}
    assert {name.partition(".")[2]: count for name, count in mix.items() if count} == counts


def test_a_figure_as_text():
    both = compare(made(kernel="sm80_pipeline", stages=3), made(kernel="sm80_pipeline", stages=4))
    lines = {line.split()[0]: line.split()[1:] for line in str(both).splitlines() if line}
    assert lines["config.stages"] == ["3", "4", "1.33"]
    assert lines["launch.smem"][2] and "," in lines["launch.smem"][0]
    assert lines["predicted.seconds"][1] == "us"


# -- times ------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch) -> fake_gpu.FakeGpu:
    return fake_gpu.install(monkeypatch)


def test_both_are_timed_in_turns(gpu):
    gpu.add("fast", 1.0), gpu.add("slow", 4.0)
    a, b = (made(kernel=kernel, m=40, n=30, k=20, backend="cuda") for kernel in ("fast", "slow"))
    both = compare(a, b, time=True, rounds=6)
    assert not gpu.memory  # all memory was freed
    assert both.ratio == pytest.approx(4) and both.gpu == "NVIDIA H200"
    assert both.figures["measured.seconds"] == pytest.approx((1e-3, 4e-3))
    assert both.figures["measured.teraflops"][1] == pytest.approx(2 * 40 * 30 * 20 / 4e9)
    assert "b takes 4.000 of a's time on NVIDIA H200, median of 6 rounds" in str(both)


def test_matrices_lie_as_they_are_described(gpu):
    """Test that matrices have their spans and alignments in memory, in several copies."""
    gpu.add("one"), gpu.add("two")
    more = {"m": 40, "n": 30, "k": 20, "backend": "cuda", "l": 3, "dtype": "float32"}
    a, b = made(kernel="one", **more, base_offset=2), made("NT", kernel="two", **more, lda=43)
    compare(a, b, time=True, rounds=2)
    places = [c for name, _, c in gpu.ran if name == "one"]
    assert {c % 16 for c in places} == {8}
    assert len(set(places)) > 20  # enough copies to exceed L2
    assert {op for _, op, _ in gpu.ran} == {"TN", "NT"}


def test_what_refuses_is_not_timed(gpu, monkeypatch):
    gpu.add("fast")
    gpu.add("library")

    def refuse(*_: Any) -> None:
        raise CublasError("cuBLAS does not support it")

    monkeypatch.setattr(gpu.kernels["library"], "bind", refuse)
    a, b = (made(kernel=name, m=40, n=30, k=20, backend="cuda") for name in ("fast", "library"))
    both = compare(a, b, time=True)
    assert both.ratio is None and both.figures["measured.seconds"][1] is None
    assert "cuBLAS does not support it" in str(both)


# -- the command ------------------------------------------------------------------------------


def test_the_command(run):
    words = (*WORDS, "TN", "--a", "stages=3", "--b", "stages=4 tile=64x64x32")
    status, out, err = run(*words, "--kernel", "sm80_pipeline")
    assert (status, err) == (0, "")
    assert "a  stages=3" in out and "64x64x32" in out and "b / a" in out


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        ("op=NN", "op=TN", {"op": ["NN", "TN"]}),
        ("", "lda=97", {"matrices.A.ld": [64, 97]}),
        ("kernel=sm80_pipeline", "kernel=cutlass_universal",
         {"kernel": ["sm80_pipeline", "cutlass_universal"]}),
        ("kernel=sm80_pipeline,tile=64x64x32", "kernel=sm80_pipeline tile=128,64,32 min-ctas=2",
         {"config.tile": ["64x64x32", "128x64x32"], "config.min_ctas": [1, 2]}),
        ("dtype=float32 out-dtype=float32", "m=100,n=50", {"m": [96, 100], "n": [80, 50]}),
        ("arch=sm_80", "arch=sm_90a", {"arch": ["sm_80", "sm_90a"]}),
        ("", "base-offset=4", {"matrices.A.alignment": [256, 8]}),
    ],
)  # fmt: skip
def test_sides_take_all_options(run, a, b, differs):
    words = ["compare", *SIZES, *["--arch", "sm_80"] * ("arch" not in a)]
    status, out, err = run(*words, *["TN"] * ("op=" not in a), "--a", a, "--b", b, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert (found["a"]["given"], found["b"]["given"]) == (a, b)
    assert {name: found["figures"][name] for name in differs} == differs


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["TN"], "--a and --b are missing"),
        (["--a", "op=TN"], "op=OP in --b"),
        (["TN", "--a", "stages"], "--a has 'stages'; expected NAME=VALUE"),
        (["TN", "--a", "stages=3 stages=4"], "--a has stages twice"),
        (["TN", "--a", "stages="], "--a has 'stages='"),
        (["TN", "--b", "stagse=3"], "--b: option --stagse is not known; did you mean --stages?"),
        (["TN", "--b", "json=3"], "option --json is not known"),
        (["TN", "--b", "m=many"], "--b m=many is not understood"),
        (["TN", "--b", "order=Q"], "--b order=Q is not known; expected one of F, C"),
        (["TN", "--b", "kernel=nave"], "nave"),
        (["TN", "--a", "stages=3", "--rounds", "0"], "--rounds 0; expected 1 or more"),
    ],
)
def test_what_is_refused(run, words, part):
    status, _, err = run(*WORDS, *words)
    assert status == 2 and part in err and err.count("\n") == 1


def test_the_command_times_on_a_gpu(gpu, run, monkeypatch):
    gpu.add("fast", 1.0), gpu.add("slow", 2.0)
    words = ("compare", "TN", "-m40", "-n30", "-k20", "--a", "kernel=fast", "--b", "kernel=slow")
    status, out, err = run(*words, "--json", "--rounds", "3")
    assert status == 0, err
    found = json.loads(out)
    assert found["ratio"] == pytest.approx(2) and found["rounds"] == 3
    for more in (["--no-time"], ["--gpu", "H200"]):
        assert json.loads(run(*words, "--json", *more)[1])["ratio"] is None


# -- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", {}),
        ("tile=128x128x32", {"tile": "128x128x32"}),
        ("tile=128,128,32,stages=4", {"tile": "128,128,32", "stages": "4"}),
        (" min-ctas=2,  warps=2,1 ", {"min_ctas": "2", "warps": "2,1"}),
        ("gpu=my=file.toml", {"gpu": "my=file.toml"}),
    ],
)
def test_assignments(text, words):
    assert assignments(text, "--a") == words


def test_values():
    assert option_value("(2, 1)") == (2, 1) and option_value("TRUE") is True
    assert option_value("0.5") == "0.5"
