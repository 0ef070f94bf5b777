"""Test ``cute-gemm analyze``, ``copy`` and ``profile``."""

import json

from command_line import SIZES


def test_analyze(run):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_80", "--kernel", "sm80_pipeline")
    status, out, _ = run(*words)
    assert status == 0
    assert "ldmatrix" in out
    status, out, _ = run(*words, "--copy", "mn_major", "--json")
    assert json.loads(out)["operands"]["A"]["coalesced"] is False


def test_analyze_on_a_gpu_of_ones_selection(run):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_90", "--json")
    made = [json.loads(run(*words, *more)[1]) for more in ([], ["--gpu", "H200"])]
    names = [report["performance"]["gpu"]["name"] for report in made]
    assert names[0] != names[1] and names[1].startswith("H200")


def test_analyze_with_beta_reads_c(run):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_80", "--kernel", "cutlass_universal", "--json")

    def loads_of_c(*more: str) -> int:
        rows = json.loads(run(*words, *more)[1])["accesses"]
        return sum(
            (r["operand"], r["space"], r["direction"]) == ("C", "global", "load") for r in rows
        )

    assert (loads_of_c(), loads_of_c("--beta", "-1")) == (0, 1)


def test_reports_of_groups(run):
    words = ("TN", "-n96", "-k64", "--ragged", "M", "--order", "C", "--arch", "sm_90a")
    status, out, err = run("analyze", *words, "-m", "200", "-l", "4")
    assert status == 0, err
    assert "M=200 N=96 K=64 in 4 groups along M" in out
    assert "4 groups of 50 along M, taken to be equal" in " ".join(out.split())
    _, out, _ = run("analyze", *words, "--group-sizes", "100,0,36,64", "--json")
    found = json.loads(out)
    assert found["groups"].startswith("4 groups of 0 to 100 along M: ")
    # Each element of C takes k / bN elements of A, for any number of groups.
    simt = ("--kernel", "double_buffered", "--dtype", "float32", "-m", "256", "--json")
    per = [
        json.loads(run("analyze", *words, *simt, "-l", count)[1])["performance"]["per_result"]
        for count in ("1", "2", "4")
    ]
    assert per[0] == per[1] == per[2]
    out = run("explain", "double_buffered", *words[:-2], "-m256", "-l4", "--arch", "sm_80")[1]
    assert "M=256 N=96 K=64 in 4 groups along M" in out
    status, out, _ = run("trace", *words[:-2], "--arch", "sm_80", "--group-sizes", "20,0,13")
    assert status == 0 and "no difference" in out
    aligned = ("-m200", "--base-offset", "4", "--order", "F", "--json")
    made = json.loads(run("analyze", *words, *aligned)[1])["matrices"]
    assert [made[name]["alignment"] for name in "ABC"] == [8, 8, 2]


def test_groups_that_do_not_fit(run):
    for words, said in (
        (["--group-sizes", "3,4"], "--group-sizes 3,4 came without the mode of the groups"),
        (["--ragged", "M", "--group-sizes", "3,x"], "--group-sizes '3,x' is not understood"),
        (["--ragged", "M", "--group-sizes", "3,4", "-l", "3"], "-l 3 came with --group-sizes of 2"),
        (["--ragged", "M", "-l", "0"], "l=0 groups came with ragged='M'; expected 1 group or more"),
        (["--ragged", "K", "--kernel", "naive"], "kernel 'naive' takes no grouped GEMM"),
        (["--ragged", "M", "--dtype", "f32", "--compute", "bf16x6"], "compute='bf16x6' came with"),
    ):
        status, _, err = run("analyze", "TN", *SIZES, "--arch", "sm_90a", *words)
        assert status == 2 and said in err, err
    status, _, err = run("profile", "TN", "--ragged", "M", "--base-offset", "4")
    assert status == 2 and "--base-offset 4 came with --ragged" in err


def test_analyze_and_emit_an_epilogue(run):
    words = ("TN", *SIZES, "--arch", "sm_80", "--kernel", "sm80_pipeline")
    status, out, _ = run("analyze", *words, "--epilogue", "bias+gelu")
    assert status == 0 and "along N, float16" in out and "a launch less" in out
    _, out, _ = run("emit", *words, "--epilogue", "scale+relu")
    assert "cute_gemm::maximum(v2, v3)" in out
    status, _, said = run("analyze", *words, "--epilogue", "swish")
    assert status == 2 and "'swish' is not known; expected some of bias" in said


def test_analyze_and_trace_from_a_base_offset(run):
    words = ("TN", "-m64", "-n48", "-k40", "--arch", "sm_80", "--kernel", "sm80_pipeline", "--json")
    for command in ("analyze", "trace"):
        for offset, aligned in (("0", 256), ("1", 2), ("4", 8)):
            status, out, err = run(command, *words, "--base-offset", offset)
            assert status == 0, err
            made = json.loads(out)
            if command == "analyze":
                assert {x["alignment"] for x in made["matrices"].values()} == {aligned}
            else:
                bits = 8 * min(16, aligned)
                assert made["agrees"] and f"_v{bits}_{bits}_" in made["symbol"]
        status, _, err = run(command, *words, "--base-offset", "3")
        assert status != 0 and "base_offset is 3; expected 0 or a power of two" in err


def test_analyze_build_knows_the_registers(run):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_80", "--json")
    report = json.loads(run(*words, "--build")[1])
    assert report["resources"]["registers"] > 0
    assert report["performance"]["occupancy"]["registers_known"] is True
    assert json.loads(run(*words)[1])["resources"] is None


def test_analyze_html(run, tmp_path):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_80")
    file = tmp_path / "report.html"
    status, out, _ = run(*words, "--html", str(file))
    assert status == 0 and "ldmatrix" in out  # the text is printed too
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    status, out, _ = run(*words, "--html", "-")
    assert (status, out) == (0, page)


def test_leading_dimensions_show_in_the_descriptors(run):
    _, out, _ = run("analyze", "NT", *SIZES, "--lda", "100", "--arch", "sm_80", "--json")
    assert json.loads(out)["matrices"]["A"]["descriptor"] == "(96,64):(1,100)"


COPY = ("copy", "--tensor", "(128,32):(4096,1)", "--threads", "(16,8):(1,16)",
        "--values", "(8,1):(1,8)", "--atom", "cp.async.128")  # fmt: skip


def test_copy(run):
    status, out, _ = run(*COPY)
    assert status == 0  # findings are not an error
    assert "12.5 %" in out and "threads (32,4):(4,1), values (1,8)" in " ".join(out.split())
    report = json.loads(run(*COPY, "--json")[1])
    assert (report["coalesced"], report["bits"], report["dtype"]) == (False, 16, "float16")
    assert report["fixes"][0][0]["what"].startswith("threads (32,4):(4,1)")


def test_every_argument_of_copy_arrives(run):
    words = ["copy", "--tensor", "Sw<3,3,3> o 0 o (64,64):(64,1)", "--tile", "32x8", "--tv"]
    words += ["(32,8):(1,32)", "--atom", "ld.shared", "--dtype", "float32", "--json"]
    report = json.loads(run(*words)[1])
    (row,) = report["accesses"]
    assert (row["space"], report["tile"], report["dtype"]) == ("shared", [32, 8], "float32")
    words = [*COPY[:-1], "universal", "--space", "global", "--direction", "store", "--json"]
    words[words.index("universal")] = "UniversalCopy<half_t>"
    report = json.loads(run(*words, "--base-alignment", "32")[1])
    assert report["base_alignment"] == 32
    assert report["accesses"][0]["instruction"] == "st.global"
    report = json.loads(run(*COPY, "--smem", "(128,32):(32,1)", "--json")[1])
    assert [row["space"] for row in report["accesses"]] == ["global", "shared"]
    words = ["copy", "--tensor", "(0,64) o (128,64):(1@0,1@1)", "--matrix", "(4096,4096):(4096,1)"]
    words += [*COPY[3:5], "--values", "(1,8)", "--atom", "cp.async.32", "--dtype", "int4", "--json"]
    report = json.loads(run(*words)[1])
    assert (report["matrix"], report["packing"]) == ("(4096,4096):(4096,1)", [2, 1])
    assert (report["bits"], report["base_alignment"]) == (32, 32)


def test_copy_html(run, tmp_path):
    file = tmp_path / "copy.html"
    assert run(*COPY, "--html", str(file))[0] == 0
    assert "12.5 %" in file.read_text(encoding="utf-8")


def test_profile_takes_its_own_arguments(run, monkeypatch):
    from cute_gemm.commands import profile

    seen = []
    monkeypatch.setattr(profile, "command", lambda arguments: seen.append(arguments) or 1)
    words = ("profile", "TN", *SIZES, "--beta", "-1", "--base-offset", "8", "--copy", "mn_major")
    assert run(*words)[0] == 1
    (arguments,) = seen
    assert (arguments.op, arguments.m, arguments.beta, arguments.base_offset) == ("TN", 96, -1, 8)
    assert arguments.options == {"copy": "mn_major"}
