"""Test the GPU table: names, and consistency of its figures."""

import json
import sys
from dataclasses import replace

import pytest

import cute_gemm as cg
from cute_gemm.arch import MULTIPROCESSORS, Arch
from cute_gemm.commands import cli
from cute_gemm.commands.explain import explain
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.gpus.table import GPUS, gpu, nearest, of_device, stands_for
from cute_gemm.plan import select
from cute_gemm.report.candidates import candidates_dict

#: Dense operations per clock and multiprocessor, from the architecture whitepapers, by compute
#: capability: tensor cores with 16-bit types (GeForce has half), CUDA cores with FP32.
RATES = {
    80: ((2048,), 128), 86: ((1024, 512), 256), 87: ((2048,), 256), 89: ((1024, 512), 256),
    90: ((4096,), 256), 100: ((8192,), 256), 120: ((1024, 512), 256),
}  # fmt: skip


#: Consumer GPUs.
SLOW = tuple(f"RTX {name}" for name in (3080, 3090, 4080, 4090, 5080, 5090))


@pytest.mark.parametrize("row", GPUS, ids=lambda row: row.name)
def test_peaks_follow_from_multiprocessors_and_clock(row):
    half, fp32 = RATES[row.cc]
    cycles = row.sms * row.clock_ghz / 1e3  # 10**12 clocks of all multiprocessors per second
    assert row.peak("float32").tflops == pytest.approx(fp32 * cycles, rel=0.02)
    slow = row.name == "L40" or row.name in SLOW
    rate = half[-1] if slow else half[0]
    peak = row.peak("float16")
    # Tensor rates of Hopper and Blackwell are specified for a clock below the boost clock.
    low = 0.84 if row.cc in (90, 100) else 0.98
    assert low * rate * cycles <= peak.tflops <= 1.01 * rate * cycles
    assert row.peak("bfloat16").tflops == peak.tflops
    assert row.peak("tf32").tflops == pytest.approx(peak.tflops / 2, rel=0.03)
    # Consumer GPUs accumulate in int32 at the full rate, in float32 at half of it.
    factor = 4 if row.name in SLOW else 2
    assert row.peak("int8").tflops == pytest.approx(factor * peak.tflops, rel=0.03)
    fraction = 2 if row.cc in (80, 90, 100) else 64
    slow = row.peak("float64", "CUDA cores").tflops
    assert slow == pytest.approx(row.peak("float32").tflops / fraction, rel=0.02)
    fast = row.peak("float64", "tensor cores")
    assert (fast is not None) == (row.cc in (80, 90, 100))
    assert row.peak("float64").tflops == (fast.tflops if fast else slow)


@pytest.mark.parametrize("row", GPUS, ids=lambda row: row.name)
def test_rows_are_complete(row):
    assert row.source.startswith("NVIDIA ")
    assert (200 if row.cc == 87 else 300) <= row.bandwidth_gbs <= 8000
    assert row.l2_bytes % (1 << 20) == 0
    assert row.cc in MULTIPROCESSORS and row.arch.cc == row.cc
    assert (row.peak("float8") is None) == (row.cc < 89)
    assert row.peak("float32", "tensor cores") is None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("H200", "H200"), ("NVIDIA H200", "H200"), ("nvidia h100 80gb hbm3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"), ("a100", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"), ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"), ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx_4090", "RTX 4090"), ("RTX4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA GH200 480GB", "GH200"), ("NVIDIA A800 80GB PCIe", "A800 PCIe 80GB"),
        ("NVIDIA GeForce RTX 3080", "RTX 3080"), ("rtx 4080", "RTX 4080"), ("5080", "RTX 5080"),
        ("L40", "L40"), ("Orin", "Jetson AGX Orin 64GB"),
    ],
)  # fmt: skip
def test_names(given, name):
    assert gpu(given).name == name


def test_every_name_means_one_gpu():
    for row in GPUS:
        assert all(gpu(name) is row for name in (row.name, *row.aliases))


def test_an_unknown_name_lists_and_suggests():
    with pytest.raises(OptionError, match="gpu='H20O' is not known; expected one of A100 SXM") as e:
        gpu("H20O")
    assert str(e.value).endswith("did you mean 'H200'?")
    with pytest.raises(OptionError) as e:
        gpu("Voodoo 2 SLI")
    assert "did you mean" not in str(e.value)


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_80", "A100 SXM 80GB"), ("sm_86", "RTX 3090"), ("sm_89", "RTX 4090"),
        ("sm_90", "H100 SXM"), ("sm_90a", "H100 SXM"), ("sm_100", "B200"), ("sm_120", "RTX 5090"),
        ("sm_87", "Jetson AGX Orin 64GB"), ("sm_103", None), ("sm_121", None),
    ],
)  # fmt: skip
def test_the_gpu_of_an_arch(arch, name):
    found = stands_for(Arch(arch))
    assert (found.name if found else None) == name
    assert found is None or f"sm_{found.cc}" == arch.rstrip("a")


@pytest.mark.parametrize(
    ("cc", "kib", "warps"),
    [(80, 164, 64), (86, 100, 48), (87, 164, 48), (89, 100, 48), (90, 228, 64), (120, 100, 48)],
)
def test_limits(cc, kib, warps):
    sm = MULTIPROCESSORS[cc]
    assert (sm.shared, sm.warps) == (kib * 1024, warps)
    assert sm.shared == Arch(f"sm_{cc}").shared_limit + 1024


def test_what_is_not_known_of_an_arch():
    assert Arch("sm_75").multiprocessor is None and Arch("sm_75").shared_limit == 99 * 1024
    for name in ("90a", "sm_", "sm_9x", 90):
        with pytest.raises(UnsupportedError, match="expected one like 'sm_80' or 'sm_90a'"):
            Arch(name)


def test_an_arch_is_its_name_and_knows_what_it_has():
    assert Arch("sm_90a") == "sm_90a" and Arch(Arch("sm_80")) is Arch("sm_80")
    assert [Arch(name).has("wgmma") for name in ("sm_80", "sm_90", "sm_90a", "sm_100a")] == [
        False, False, True, False,
    ]  # fmt: skip
    assert Arch("sm_90").has("stmatrix") and not Arch("sm_89").has("tma")


def test_a_named_gpu_says_the_arch(capsys):
    from cute_gemm.commands.cli import main

    assert cg.plan("TN", gpu="H200", **SIZES).arch == "sm_90a"
    assert cg.plan("TN", gpu="H200", arch="sm_90", **SIZES).arch == "sm_90"
    assert cg.plan("TN", gpu="RTX 4090", kernel="host", **SIZES).arch == "cpu"
    for asks in (cg.plan, cg.analyze):
        with pytest.raises(OptionError, match="8.0 and does not run kernels of sm_90a"):
            asks("TN", gpu="A100", arch="sm_90a", **SIZES)
    words = ["-m", "256", "-n", "256", "-k", "64", "--gpu", "H200"]
    assert main(["analyze", "TN", *words]) == 0
    assert "sm_90a" in capsys.readouterr().out
    assert main(["explain", "naive", "TN", *words]) == 0
    assert "sm_90a" in capsys.readouterr().out


def test_the_gpu_that_a_driver_names():
    assert of_device("NVIDIA H200", Arch("sm_90a"), 132) is gpu("H200")
    part = of_device("NVIDIA H200", Arch("sm_90a"), 66)
    assert part.sms == 66 and part.peak("tf32").tflops == gpu("H200").peak("tf32").tflops / 2
    other = of_device("NVIDIA Thor", Arch("sm_110a"), 20)
    assert (other.name, other.cc, other.sms) == ("NVIDIA Thor", 110, 20)
    assert other.bandwidth_gbs == gpu("B200").bandwidth_gbs and nearest(Arch("sm_75")).cc == 80


# -- a user's GPU -----------------------------------------------------------------------------

OWN = {
    "name": "My GPU", "cc": 90, "sms": 100, "clock_ghz": 1.5, "bandwidth_gbs": 3000,
    "l2_bytes": 1 << 25, "tensor_cores": {"float16": 700.5}, "cuda_cores": {"float32": 40},
}  # fmt: skip
TOML = """name = "My GPU"
cc = 90
sms = 100
clock_ghz = 1.5
bandwidth_gbs = 3000
l2_bytes = 33554432
[tensor_cores]
float16 = 700.5
[cuda_cores]
float32 = 40
"""
SIZES = {"m": 512, "n": 512, "k": 512, "dtype": "float16"}


@pytest.fixture(params=["json", "toml"] if sys.version_info >= (3, 11) else ["json"])
def file(request, tmp_path):
    path = tmp_path / f"gpu.{request.param}"
    path.write_text(TOML if request.param == "toml" else json.dumps(OWN))
    return path


def test_a_gpu_of_ones_own(file, capsys):
    made, told = gpu(OWN), gpu(str(file))
    assert replace(told, source=made.source) == made and told.source == str(file)
    assert made.peak("float16").unit == "tensor cores" and made.peak("float32").tflops == 40
    for given in (OWN, str(file), made):
        found = cg.analyze("TN", gpu=given, **SIZES)
        assert (found.arch, found.performance.gpu.name) == ("sm_90a", "My GPU")
        assert found.performance.roofline.peak_tflops == 700.5
        assert "100 multiprocessors of My GPU" in " ".join(str(found).split())
        assert cg.plan("TN", gpu=given, arch="sm_90a", backend="cpu", **SIZES).gpu.sms == 100
    words = ["TN", "-m", "512", "-n", "512", "-k", "512", "--gpu", str(file)]
    assert cli.main(["analyze", *words]) == 0 and "of My GPU" in capsys.readouterr().out
    assert cli.main(["explain", "naive", *words]) == 0
    assert "Predicted time on My GPU" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["H200", "A10", "L40S", "H100 PCIe", "file"])
def test_a_gpu_decides_selection_prediction_and_roofline(name, tmp_path, run):
    place = gpu({**OWN, "sms": 8} if name == "file" else name)
    sizes = {**SIZES, "m": 3000, "n": 2000}
    if name == "file":
        (tmp_path / "own.json").write_text(json.dumps({**OWN, "sms": 8}))
        name = str(tmp_path / "own.json")
    made = cg.plan("TN", gpu=name, **sizes)
    direct = select.select(made.problem, place.arch, "auto", {}, place)
    assert (made.arch, made.config, made.algorithm) == (place.arch, direct.config, direct.algorithm)
    predictions = candidates_dict(direct.candidates())
    elsewhere = cg.plan("TN", arch=place.arch, **sizes).report(gpu=name)
    status, out, _ = run("analyze", "TN", "-m3000", "-n2000", "-k512", "--gpu", name, "--json")
    told = json.loads(out)
    assert status == 0
    for found in (made.report(), cg.analyze("TN", gpu=name, **sizes), elsewhere):
        assert found.predictor.gpu == found.performance.gpu.name == place.name
        assert candidates_dict(found.candidates) == predictions
        assert (
            found.performance.waves.places % place.sms == 0 or found.performance.waves.of == "tiles"
        )
        assert f"Predicted on {place.name}," in str(found)
    assert (told["candidates"], told["performance"]["gpu"]["name"]) == (predictions, place.name)
    out = run("explain", "naive", "TN", "-m64", "-n64", "-k64", "--gpu", name)[1]
    assert f"Predicted time on {place.name}" in out


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"sms": None}, "has no sms; expected the number of multiprocessors"),
        ({"sms": 0}, "has sms=0; expected the number"),
        ({"clock_ghz": "fast"}, "has clock_ghz='fast'; expected GHz, 0.001 to 10"),
        ({"bandwidth_gbs": float("nan")}, "has bandwidth_gbs=nan"),
        ({"name": "a\x1b[31m"}, "expected a text"),
        ({"cores": 7}, "has 'cores', which is not known; expected name, cc, sms"),
        ({"tensor_cores": {"float7": 1}}, "tensor_cores={'float7': 1}; expected 10**12"),
        ({"cuda_cores": {"float32": -1}}, "has cuda_cores.float32=-1"),
        ({"cuda_cores": 7}, "cuda_cores=7; expected 10**12"),
        ({"cuda_cores": None}, "has no rate of float32 on CUDA cores"),
        ({"cc": True}, "has cc=True; expected the compute capability"),
    ],
)
def test_values_that_no_gpu_has(change, part):
    values = {name: value for name, value in {**OWN, **change}.items() if value is not None}
    with pytest.raises(OptionError) as refused:
        gpu(values)
    assert part in str(refused.value)


def test_a_row_without_the_rate_that_predictions_need():
    with pytest.raises(OptionError, match="H200 has no rate of float32 on CUDA cores"):
        cg.analyze("TN", gpu=replace(gpu("H200"), peaks=()), **SIZES)


def test_files_that_describe_no_gpu(tmp_path):
    for name, text, part in (
        ("a.json", "[1]", "has no table of values"), ("b.json", "{", "cannot be read"),
        ("c.json", "{}", "has no name"), ("none.json", None, "is not a file"),
        ("deep.json", "[" * 2000 + "]" * 2000, "nested too deeply"),
        ("deep.toml", "name = " + "[" * 2000 + "]" * 2000, "nested too deeply|needs Python 3.11"),
        ("large.json", json.dumps(OWN | {"clock_ghz": 10**400}), "has clock_ghz=1000"),
        ("long.json", json.dumps(OWN | {"name": [0] * 10**5}), r"has name=\[0, 0, 0.* \.\.\.;"),
    ):  # fmt: skip
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(OptionError, match=part) as refused:
            gpu(str(tmp_path / name))
        assert len(str(refused.value)) < 400


def test_what_is_not_known_is_said():
    found = cg.analyze("TN", arch="sm_121", **SIZES)
    assert found.performance.roofline is None and found.performance.waves is None
    assert "no GPU stands for this arch; name one: gpu=, --gpu NAME or FILE" in str(found)
    of_another = explain("naive", "TN", arch="sm_121", **SIZES)
    assert f"Predicted time on {of_another.plan.gpu.name}" in str(of_another)
    bare = {**OWN, "tensor_cores": {}}
    text = str(cg.analyze("TN", gpu=bare, **SIZES))
    assert "roofline: no peak rate of My GPU is known for these types" in text
    lines = cg.analyze("TN", arch="sm_87", **SIZES).performance.lines()
    assert {"roofline", "waves"} <= dict(lines).keys() and "not known" not in dict(lines)
