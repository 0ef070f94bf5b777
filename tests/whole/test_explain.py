"""Test ``explain``: ideas, accesses per result counted twice, predicted times, the next kernel."""

import io
import json
import re

import pytest
from cases import OPS
from rich.console import Console

import cute_gemm as cg
from cute_gemm.commands import bench, cli
from cute_gemm.commands.explain import explain, print_code
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels import registry
from cute_gemm.report import ideas
from cute_gemm.report.explain import Explanation

SIMT = registry.LADDER[registry.LADDER.index("naive") : registry.LADDER.index("tensor_core")]
N = 4096


def large(kernel: str, op: str = "NT", dtype: str = "float32", **more: object) -> Explanation:
    sizes = {"m": N, "n": N, "k": N, "arch": "sm_90a", "gpu": "H200", **more}
    return explain(kernel, op, dtype=dtype, **sizes)


def count(found: Explanation, space: str, direction: str, operand: str = "AB"):
    [one] = [
        one
        for one in found.counts
        if (one.space, one.direction, one.operand) == (space, direction, operand)
    ]
    return one


def work(found: Explanation):
    return registry.get(found.kernel).compiled().work(found.plan.config, found.problem)


# -- ideas ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.names())
def test_every_kernel_has_an_idea(name):
    text = ideas.idea(registry.get(name))
    assert len(text) > 60 and "\n" not in text and text.endswith(".")
    assert not text.startswith("The idea")


def test_an_idea_is_the_paragraph_of_the_header(tmp_path, monkeypatch):
    monkeypatch.setattr(ideas, "templates_path", lambda: tmp_path)
    header = (
        "// some: what it is.\n//\n// The idea: naive, with\n// a twist.\n//\n// More.\n\ncode\n"
    )
    (tmp_path / "some.cuh").write_text(header)
    (tmp_path / "naive.cuh").touch()
    idea = ideas._of_template.__wrapped__
    assert idea(tmp_path / "some.cuh") == "naive, with a twist."  # a name does not change
    (tmp_path / "some.cuh").write_text(
        "// some: what it is.\n\nint a;\n//\n// The idea: too late.\n"
    )
    with pytest.raises(LookupError, match=r"some\.cuh has no paragraph"):
        idea(tmp_path / "some.cuh")


# -- accesses per result --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "loaded", "read"),
    [
        ("naive", "2K", None), ("coalesced", "2K", None), ("smem_tiled", "K/16", "2K"),
        ("register_rows", "3K/64", "3K/2"), ("thread_tile_1d", "K/32", "9K/8"),
        ("thread_tile_2d", "K/64", "K/4"), ("bank_free", "K/64", "K/4"),
        ("double_buffered", "3K/128", "K/4"), ("sm80_pipeline", "K/64", "K/4"),
    ],
)  # fmt: skip
def test_counts_of_the_tutorials(kernel, loaded, read):
    given = {"tile": (128, 128, 16), "warps": (2, 4)} if kernel == "sm80_pipeline" else {}
    found = large(kernel, **given)
    assert str(count(found, "global", "load").formula).split(" = ")[-1] == loaded
    shared = [one for one in found.counts if one.space == "shared"]
    if read is None:
        assert not shared
        return
    assert str(count(found, "shared", "store").formula).split(" = ")[-1] == loaded
    assert str(count(found, "shared", "load").formula).split(" = ")[-1] == read


@pytest.mark.parametrize("op", OPS)
def test_tutorials_and_model_agree_where_the_tiles_divide(op):
    for kernel in (*SIMT, "tensor_core"):
        if kernel == "double_buffered":  # it loads one column ahead
            continue
        dtype = "float16" if kernel == "tensor_core" else "float32"
        for order in "FC":
            found = large(kernel, op, dtype, m=512, n=256, k=256, order=order)
            for one in found.counts:
                assert one.elements == one.tutorial, (kernel, order, one)


@pytest.mark.parametrize("kernel", ["double_buffered", "sm80_pipeline", "cutlass_universal"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_pipeline_reads_little_more_than_its_tile(kernel, dtype):
    for order in "FC":
        found = large(kernel, "TN", dtype, m=512, n=256, k=1024, order=order)
        for one in found.counts:
            assert one.tutorial <= one.elements <= 1.05 * one.tutorial, (order, one)


def test_the_model_sees_the_edges():
    found = large("bank_free", m=1000, n=1003, k=1001)
    read = count(found, "shared", "load")
    assert read.tutorial == 1001 / 4
    assert read.elements == 1024 * 1024 * 1008 / 4 / (1000 * 1003)


@pytest.mark.parametrize("kernel", ["naive", "smem_tiled", "sm80_pipeline"])
def test_requests_without_a_lane_are_left_out_once(kernel):
    found = large(kernel, "TN", m=1, n=77, k=513)
    assert any(row.launch.off for row in found.report.rows)
    for one in found.counts:
        kind = (one.space, one.direction)
        rows = [
            row
            for row in found.report.rows
            if row.operand in one.operand and (row.space, row.direction) == kind
        ]
        assert one.requests * 77 == pytest.approx(sum(row.launch.requests for row in rows))


def test_both_operands_are_the_sum():
    found = large("register_rows", "TN")
    for space, direction in (("global", "load"), ("shared", "store"), ("shared", "load")):
        a, b, both = (count(found, space, direction, name) for name in ("A", "B", "AB"))
        for figure in ("tutorial", "elements", "requests"):
            assert getattr(a, figure) + getattr(b, figure) == getattr(both, figure)
        assert (both.sectors is None) == (space == "shared")
        assert (both.wavefronts is None) == (space == "global")


def test_beta_reads_c():
    plain, read = large("naive", k=64), large("naive", k=64, beta=1)
    assert [one.operand for one in plain.counts].count("C") == 1
    assert count(read, "global", "load", "C").elements == 1
    assert read.intensity < plain.intensity
    assert large("host", k=64, beta=1).intensity == read.intensity


# -- work, and its predicted time ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "wavefronts"),
    [
        ("smem_tiled", 128), ("thread_tile_1d", 40), ("thread_tile_2d", 16), ("vectorized", 20),
        ("bank_free", 12), ("warp_tiled", 8),
    ],
)  # fmt: skip
def test_wavefronts_for_64_warp_fmas(kernel, wavefronts):
    assert count(large(kernel), "shared", "load").wavefronts == wavefronts * N / 64 / 32


def test_past_the_edges_there_are_products_too():
    sizes = {"m": 1000, "n": 1003, "k": 1001}
    assert work(large("bank_free", **sizes)).products == 1024 * 1024 * 1008
    assert work(large("naive", **sizes)).products == 1000 * 1003 * 1001


def test_a_complex_product_is_four():
    assert work(large("bank_free", dtype="complex64", k=64)).products == N * N * 64 * 4


@pytest.mark.parametrize(
    ("kernel", "dtype", "unit"),
    [
        ("bank_free", "float32", "CUDA cores"), ("bank_free", "complex128", "CUDA cores"),
        ("sm80_pipeline", "float32", "CUDA cores"), ("cutlass_universal", "float32", "CUDA cores"),
        ("cutlass_universal", "float64", "tensor cores"),
        ("sm80_pipeline", "complex128", "tensor cores"), ("tensor_core", "float16", "tensor cores"),
    ],
)  # fmt: skip
def test_the_unit_that_multiplies(kernel, dtype, unit):
    assert work(large(kernel, dtype=dtype, m=1024, n=1024, k=256)).unit == unit


def test_the_predicted_time_is_that_of_the_report():
    found = large("naive", "TN")
    values = found.to_dict()
    assert values["predicted_seconds"] == found.report.predicted.seconds
    assert values["terms"]["L1"] > 10 * values["terms"]["CUDA cores"]
    assert "Predicted time on H200" in str(found) and "TFLOP/s" in str(found)


def test_of_an_arch_that_no_gpu_stands_for_the_time_is_that_of_the_plans_gpu():
    found = explain("naive", "NN", m=64, n=64, k=64, dtype="float32", arch="sm_121")
    assert f"Predicted time on {found.plan.gpu.name}" in str(found)
    with pytest.raises(OptionError, match="gpu='H2'"):
        explain("naive", "NN", m=64, n=64, k=64, dtype="float32", arch="sm_80", gpu="H2")


# -- the next kernel ------------------------------------------------------------------------------


def test_the_next_kernel_is_the_next_of_the_ladder():
    [one] = large("thread_tile_1d").next
    assert one.kernel == "thread_tile_2d" and one.idea == ideas.idea(registry.get("thread_tile_2d"))
    changes = {change.what: (change.this, change.next) for change in one.changes}
    assert changes["smem loads, elements per result"] == ("4,608", "1,024")
    assert changes["results of a thread"] == ("8 x 1", "8 x 8")
    assert all(text.endswith(" ms") for text in changes["predicted time"])
    assert all(this != after for this, after in changes.values())
    assert "gmem stores of C, elements per result" not in changes


def test_conflicts_come_and_go():
    [vectorized] = large("thread_tile_2d").next
    [free] = large("vectorized").next
    for one, side in ((vectorized, "next"), (free, "this")):
        [change] = [change for change in one.changes if change.what == "bank conflicts per result"]
        assert getattr(change, side) != "0"
        assert {change.this, change.next} - {getattr(change, side)} == {"0"}


def test_kernels_that_do_not_take_the_problem_are_passed_over():
    full, tiled = large("coalesced").next
    assert full.kernel == "smem_full_k" and "k=4096 needs" in full.refused
    assert not full.changes and tiled.kernel == "smem_tiled" and tiled.changes and not tiled.refused
    names = [one.kernel for one in large("double_buffered", dtype="complex64").next]
    assert names == ["tensor_core", "sm80_pipeline", "sm90_wgmma"]
    assert large("sm90_wgmma", dtype="float16", k=64).next == ()
    assert large("cutlass_universal", k=64).next == ()


def test_the_options_are_of_this_kernel_alone():
    found = large("smem_tiled", tile=(16, 16, 16))
    assert found.plan.config.tile == (16, 16, 16)
    assert str(count(found, "global", "load").formula).endswith("K/8")
    [change] = [one for one in found.next[0].changes if one.what == "CTA tile"]
    assert (change.this, change.next) == ("16 x 16 x 16", "64 x 32 x 32")


def test_host_and_cublas():
    host, library = large("host"), large("cublas")
    assert count(host, "global", "load").tutorial == 2 * N
    assert count(host, "global", "load").elements is None
    assert library.counts == () and library.next == ()
    for found in (host, library):
        assert found.report is None and found.prediction is None
        assert found.intensity == 2 * N / 12
        json.dumps(found.to_dict(), allow_nan=False)
        assert ideas.idea(registry.get(found.kernel))[:30] in str(found)
    assert [one.kernel for one in host.next] == ["naive"] and not host.next[0].changes


@pytest.mark.parametrize("sizes", [{"m": 0}, {"k": 0}, {"m": 0, "n": 0, "k": 0}])
@pytest.mark.parametrize("kernel", ["host", "naive", "bank_free"])
def test_nothing_to_do(kernel, sizes):
    found = large(kernel, **sizes)
    json.dumps(found.to_dict(), allow_nan=False)
    assert str(found)


# -- the command ----------------------------------------------------------------------------------

WORDS = ("-m", "256", "-n", "256", "-k", "128", "--arch", "sm_90a", "--dtype", "float32")


@pytest.fixture
def run(capsys):
    """Return a function: arguments -> (exit status, standard output, standard error)."""

    def call(*words: str) -> tuple[int, str, str]:
        status = cli.main(["explain", *words])
        return status, *capsys.readouterr()

    return call


def test_what_is_printed(run):
    status, out, _ = run("naive", "TN", *WORDS, "--gpu", "H200")
    assert status == 0
    for text in ("The idea", "2K", "Predicted time on H200", "do not add up",
                 "The next kernel: coalesced", "What it changes"):  # fmt: skip
        assert text in out
    assert "====" not in out


def test_without_a_kernel_the_ladder_is_listed(run):
    status, out, _ = run()
    assert status == 0
    first = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert first == list(registry.LADDER) and first[-1] == "sm90_wgmma"
    assert "cute-gemm explain naive TN" in out and max(map(len, out.splitlines())) <= 112
    status, out, _ = run("--json")
    ladder = json.loads(out)["ladder"]
    assert status == 0 and [rung["name"] for rung in ladder] == first
    assert all(rung["idea"] == ideas.idea(registry.get(rung["name"])) for rung in ladder)


def test_the_op_is_nn_unless_it_is_said(run):
    for words, op in ((("naive",), "NN"), (("naive", "tt"), "TT")):
        status, out, _ = run(*words, "-k", "32", "--json")
        assert status == 0 and json.loads(out)["op"] == op


def test_nothing_follows_the_last_rung(run):
    _, out, _ = run("sm90_wgmma", "-k", "64")
    assert "The idea" in out and "The next kernel" not in out


def test_json_is_the_same_as_data(run):
    status, out, _ = run(
        "bank_free", "NN", *WORDS, "--skew", "padding", "--json", "--show", "source"
    )
    values = json.loads(out)
    assert status == 0
    sizes = {"m": 256, "n": 256, "k": 128, "dtype": "float32", "arch": "sm_90a"}
    found = explain("bank_free", "NN", **sizes, skew="padding")
    assert values.pop("source").startswith("// bank_free: ")
    assert values == json.loads(found.to_json())
    assert "padding" in values["config"]
    assert {one["operand"] for one in values["per_result"]} == {"A", "B", "AB", "C"}
    assert values["predicted_seconds"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tensor_core", "NN"), "does not take float32 with compute='float32'"),
        (("smem_full_k", "NN", "-k", "100000"), "k=100000 needs"),
        (("nosuch", "NN"), "kernel 'nosuch' is not known"),
        (("cublas", "NN", "--show", "source"), "kernel 'cublas' is NVIDIA's library"),
        (("host", "NN", "--show", "ptx"), "kernel 'host' is a loop in Python"),
        (("naive", "NN", "--kernel", "host"), "option --kernel is not known"),
    ],
)
def test_what_is_refused(words, said, run):
    status, out, err = run(*words[:2], *WORDS, *words[2:])
    assert status == 2 and said in err and not out


def test_auto_is_the_kernel_that_is_chosen(run):
    status, out, _ = run("auto", "NN", *WORDS, "--json")
    chosen = cg.plan(
        "NN", m=256, n=256, k=128, dtype="float32", arch="sm_90a", backend="cpu"
    ).kernel
    assert status == 0 and json.loads(out)["kernel"] == chosen != "auto"


def test_of_cublas_nothing_is_said_of_the_ladder(run):
    """Test cuBLAS, which the ladder compares with sm90_wgmma."""
    _, out, _ = run("cublas", "NN", *WORDS)
    assert "wgmma and TMA, as sm90_wgmma does" in " ".join(out.split())


def test_code_is_printed_after_it(run):
    status, out, _ = run("host", "NN", *WORDS, "--show", "source")
    assert status == 0 and "==== source ====" in out and "total += product" in out
    _, out, _ = run("naive", "NN", *WORDS, "--show", "source")
    first, _, unit = out.partition("// The unit that is compiled.")
    assert "// naive: one thread per element" in first and "naive_f32_f32_f32_nn" in unit


@pytest.mark.parametrize(("width", "beside"), [(200, True), (100, False)])
def test_code_stands_side_by_side_where_there_is_room(width, beside, capsys):
    out = io.StringIO()
    code = {"source": "first\nsecond", "ptx": "mov [x]", "sass": "FFMA\tR0"}
    print_code(Console(file=out, width=width), code)
    lines = (out.getvalue() + capsys.readouterr().out).splitlines()
    together = [line for line in lines if "first" in line and "mov [x]" in line and "FFMA" in line]
    assert bool(together) == beside
    assert ("==== ptx ====" in lines) == (not beside)


def test_the_command_and_bench_have_one_default_type(capsys):
    for name in registry.names():
        sizes = ["-m", "32" if name == "thin" else "64", "-n", "64", "-k", "64"]
        assert cli.main(["explain", name, "NN", *sizes, "--json"]) == 0
        kind = json.loads(capsys.readouterr().out)["dtype"]
        halves = name in ("tensor_core", "sm90_wgmma")
        assert kind == ("float16" if halves else "float32")
    parser, commands = cli.parsers()
    bench.add_arguments(commands["bench"])
    assert parser.parse_args(["bench"]).dtype == "float32"


def test_words_are_explained_where_elements_are_none():
    told = {
        (name, dtype): "This describes float32" in str(large(name, dtype=dtype))
        for name in ("vectorized", "smem_tiled")
        for dtype in ("float32", "float16", "complex64")
    }
    assert [key for key, said in told.items() if said] == [
        ("vectorized", "float16"), ("vectorized", "complex64"),
        ("smem_tiled", "float16"), ("smem_tiled", "complex64"),  # of the next kernel
    ]  # fmt: skip
    assert "those of complex64 have 8" in str(large("vectorized", dtype="complex64"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
@pytest.mark.parametrize("k", [600, 1100, 2048, 3000, 9999])
def test_the_tile_that_is_advised_fits(dtype, k):
    """Test smem_full_k, which has all of k in shared memory."""
    sizes = {"m": 256, "n": 256, "k": k, "dtype": dtype, "arch": "sm_80"}
    try:
        explain("smem_full_k", "TN", **sizes)
    except UnsupportedError as refused:
        advice = r"; take (?:tile=\((\d+), (\d+), (\d+)\), or )?kernel='smem_tiled'$"
        said = re.search(advice, str(refused))
        if said[1]:
            explain("smem_full_k", "TN", **sizes, tile=tuple(map(int, said.groups())))
        else:  # not even the smallest tile fits
            with pytest.raises(UnsupportedError):
                explain("smem_full_k", "TN", **sizes, tile=(8, 4, 32))
