"""Test intensity, accesses per result, roofline, occupancy and waves of whole launches."""

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from cases import OPS

import cute_gemm as cg
from cute_gemm.errors import OptionError
from cute_gemm.gpus.table import GPUS, gpu
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.report.performance import performance
from cute_gemm.toolchain.cubin import Resources
from cute_gemm.toolchain.signature import Launch

BUILT = Resources(128, 0, 0, 0, 0)


@dataclass
class Row:
    """The attributes of an ``AccessRow`` that are read."""

    operand: str
    space: str
    direction: str
    bits: int
    lanes: int = 0
    sectors: int | None = None
    bytes: int | None = None
    instruction: str = "cp.async"
    launch: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        self.launch = SimpleNamespace(
            requests=0, lanes=self.lanes, bytes=self.bytes or 0, sectors=self.sectors or 0,
            l2_sectors=self.sectors, wavefronts=0,
        )  # fmt: skip


def problem(m: int, n: int, k: int, dtype: str = "float16", **more: object) -> GemmProblem:
    return from_sizes("NN", m=m, n=n, k=k, dtype=dtype, **more)


def tiled(m: int, n: int, k: int, tile: tuple[int, int, int]) -> list[Row]:
    """Return rows of an ideal half kernel with 16-byte loads of each tile once per CTA."""
    a, b = m * k * (n // tile[1]), n * k * (m // tile[0])
    return [
        Row("A", "global", "load", 128, a // 8, a * 2 // 32, a * 2),
        Row("B", "global", "load", 128, b // 8, b * 2 // 32, b * 2),
        Row("A", "shared", "store", 128, a // 8),
        Row("B", "shared", "store", 128, b // 8),
        Row("A", "shared", "load", 128, 4 * a // 8),  # each row address of ldmatrix: 16 bytes
        Row("B", "shared", "load", 128, 2 * b // 8),
        Row("C", "shared", "load", 32, m * n),
        Row("C", "global", "store", 128, m * n // 8, m * n * 2 // 32, m * n * 2),
    ]


def test_a_tiled_kernel_by_hand():
    n = 4096
    launch = Launch(grid=512, block=256, smem=96 * 1024)
    found = performance(
        problem(n, n, n), launch, "sm_80", tiled(n, n, n, (128, 256, 64)), BUILT, "A100"
    )
    assert found.flops == 2 * n**3
    assert found.traffic.compulsory == dict.fromkeys("ABC", 2 * n * n)
    assert found.traffic.requested == {"A": 2 * n * n * 16, "B": 2 * n * n * 32, "C": 2 * n * n}
    assert found.traffic.excess == {"A": 16, "B": 32, "C": 1}
    assert found.intensity == n / 3
    assert found.requested_intensity == n / 49
    per = found.per_result
    assert per.global_loads == n / 128 + n / 256
    assert per.shared_stores == n / 128 + n / 256
    assert per.shared_loads == 4 * n / 256 + 2 * n / 128
    assert per.global_stores == 1
    line = found.roofline
    assert (line.peak_tflops, line.unit, line.bandwidth_gbs) == (312, "tensor cores", 2039)
    assert line.ridge == pytest.approx(312e12 / 2039e9)
    assert line.bound == "compute" and line.attainable_tflops == 312
    assert line.seconds == line.compute_seconds == pytest.approx(2 * n**3 / 312e12)
    assert line.memory_seconds == pytest.approx(6 * n * n / 2039e9)
    assert found.occupancy.ctas_per_sm == 1
    assert found.occupancy.limiter == ("shared memory",)
    assert (found.waves.full, found.waves.tail_ctas) == (4, 512 - 4 * 108)


def test_a_thin_problem_is_bound_by_memory():
    found = performance(problem(1, 8192, 8192), Launch(64, 128, 0), "sm_90a", [], None, "H200")
    size = 2 * (8192 + 8192 * 8192 + 8192)
    assert found.traffic.compulsory_bytes == size
    line = found.roofline
    assert line.bound == "memory"
    assert line.seconds == line.memory_seconds == pytest.approx(size / 4.8e12)
    assert line.attainable_tflops == pytest.approx(found.flops / line.seconds / 1e12)
    assert line.attainable_tflops < 5


def test_beta_reads_c():
    p = problem(64, 32, 16)
    plain = performance(p, Launch(1, 128, 0), "sm_80", [])
    read = performance(p, Launch(1, 128, 0), "sm_80", [], reads_c=True)
    assert plain.traffic.compulsory["C"] == 64 * 32 * 2
    assert read.traffic.compulsory == {**plain.traffic.compulsory, "C": 2 * 64 * 32 * 2}
    assert read.intensity < plain.intensity


@pytest.mark.parametrize(
    ("dtype", "more", "name", "tflops", "unit"),
    [
        ("float32", {}, "A100", 19.5, "CUDA cores"),
        ("float32", {"compute": "tf32"}, "A100", 156, "tensor cores"),
        ("float64", {}, "A100", 19.5, "tensor cores"),
        ("float64", {}, "RTX 3090", 0.556, "CUDA cores"),
        ("int8", {}, "A100", 624, "tensor cores"),
        ("bfloat16", {}, "RTX 3090", 71, "tensor cores"),
        ("complex64", {}, "A100", 19.5, "CUDA cores"),
        ("complex128", {}, "RTX 3090", 0.556, "CUDA cores"),
    ],
)
def test_the_rate_is_that_of_the_type(dtype, more, name, tflops, unit):
    row = gpu(name)
    found = performance(
        problem(512, 512, 512, dtype, **more), Launch(16, 128, 0), f"sm_{row.cc}", [], None, row
    )
    assert (found.roofline.peak_tflops, found.roofline.unit) == (tflops, unit)


def test_elements_are_of_the_operand():
    p = problem(64, 64, 64, "int8")  # C is int32
    rows = [
        Row("A", "global", "load", 128, lanes=64 * 64 // 16),
        Row("C", "global", "store", 128, lanes=64 * 64 // 4),
    ]
    found = performance(p, Launch(1, 128, 0), "sm_80", rows).per_result
    assert (found.global_loads, found.global_stores) == (1, 1)


def test_a_bulk_copy_has_bytes_and_no_lanes():
    rows = [Row("A", "global", "load", 0, 0, 256, 64 * 64 * 2)]
    found = performance(problem(64, 64, 64), Launch(1, 128, 0), "sm_90a", rows)
    assert found.per_result.global_loads == 1
    assert found.traffic.requested["A"] == 64 * 64 * 2


def test_shared_accesses_that_are_not_described_are_not_zero():
    found = performance(problem(64, 64, 64), Launch(1, 128, 0), "sm_80", []).per_result
    assert found.shared_loads is None and found.shared_stores is None


def test_without_a_build_registers_are_not_known():
    found = performance(problem(512, 512, 512), Launch(16, 256, 0), "sm_80", [])
    assert not found.occupancy.registers_known
    text = dict(found.lines())["occupancy"]
    assert text.endswith("registers are not known without a build")
    built = performance(
        problem(512, 512, 512), Launch(16, 256, 0), "sm_80", [],
        replace(BUILT, shared_static=90_000),
    )  # fmt: skip
    assert built.occupancy.limits["shared memory"] == 1
    assert "not known" not in dict(built.lines())["occupancy"]


def test_the_gpu_must_run_the_arch():
    def place(arch, name=None):
        return performance(problem(8, 8, 8), Launch(1, 128, 0), arch, [], None, name).gpu

    assert place("sm_80").name == "A100 SXM 80GB"
    assert place("sm_80", "RTX 3090").name == "RTX 3090"
    assert place("sm_90a", "NVIDIA H200").name == "H200"
    assert place("sm_121") is None
    later = replace(gpu("B200"), name="later", cc=103)
    assert place("sm_100", later) is later
    with pytest.raises(OptionError, match="does not run kernels of sm_100a"):
        place("sm_100a", later)
    for arch, name in [("sm_80", "H200"), ("sm_86", "A100"), ("sm_90a", "B200")]:
        with pytest.raises(OptionError, match=f"does not run kernels of {arch}"):
            place(arch, name)
    with pytest.raises(OptionError, match="gpu='H2' is not known"):
        place("sm_80", "H2")


def test_what_is_not_known_is_left_out():
    found = performance(problem(512, 512, 512), Launch(16, 128, 0), "sm_121", [])
    assert found.roofline is None and found.waves is None and found.occupancy is not None
    unknown = performance(problem(512, 512, 512), Launch(16, 128, 0), "sm_75", [])
    assert unknown.occupancy is None
    labels = [label for label, _ in unknown.lines()]
    assert labels == ["work", "traffic", "intensity", "per element of C", "not known"]
    json.dumps(unknown.to_dict(), allow_nan=False)


def test_a_kernel_of_which_nothing_fits():
    found = performance(
        problem(64, 64, 64), Launch(1, 512, 0), "sm_80", [], replace(BUILT, registers=255)
    )
    assert found.waves is None
    assert dict(found.lines())["occupancy"].startswith("no CTA fits")


@pytest.mark.parametrize("shape", [(0, 64, 64), (64, 64, 0), (0, 0, 0)])
def test_nothing_to_do(shape):
    found = performance(problem(*shape), Launch(0, 128, 0), "sm_80", [])
    assert found.flops == 0 and found.intensity == 0 and found.roofline.attainable_tflops == 0
    json.dumps(found.to_dict(), allow_nan=False)
    assert all(text for _, text in found.lines())


def test_text_and_dict_agree():
    n = 4096
    launch = Launch(grid=512, block=256, smem=96 * 1024)
    found = performance(problem(n, n, n), launch, "sm_80", tiled(n, n, n, (128, 256, 64)), BUILT)
    text = dict(found.lines())
    assert text["work"] == "137 GFLOP"
    assert text["traffic"] == ("101 MB compulsory, 1.64 GB requested of L2 (A 16x, B 32x, C 1x)")
    assert text["intensity"].startswith("1,365 FLOP per compulsory byte, 83.6 per")
    assert text["per element of C"] == (
        "48 elements loaded from global memory, 48 written to shared memory, 128 read from it, "
        "1 stored"
    )
    assert text["roofline"].startswith("compute-bound on A100 SXM 80GB: 1,365 FLOP/B is above")
    assert "at least 441 us (441 us of operations, 49.4 us of memory)" in text["roofline"]
    assert text["occupancy"].startswith("1 CTA, 8 of 64 warps per multiprocessor (12.5 %)")
    assert "4 full and a tail of 80 CTAs in 74.1 % of its places" in text["waves"]
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["roofline"]["bound"] == "compute"
    assert values["waves"]["tail_ctas"] == 80
    assert values["gpu"]["name"] == "A100 SXM 80GB"
    assert values["traffic"]["requested_bytes"] == found.traffic.requested_bytes


@pytest.mark.parametrize("op", OPS)
def test_a_real_kernel_loads_what_its_tile_says(op):
    m, n, k = 1024, 768, 512
    report = cg.analyze(
        op, m=m, n=n, k=k, dtype="float16", kernel="sm80_pipeline", arch="sm_80", backend="cpu"
    )
    tile = report.config.tile
    found = performance(report.problem, report.launch, report.arch, report.rows)
    per = found.per_result
    assert m % tile[0] == n % tile[1] == k % tile[2] == 0
    assert per.global_loads == k / tile[0] + k / tile[1]
    assert per.global_stores == 1
    assert per.shared_loads >= per.global_loads
    if all(report[name].coalesced for name in "AB"):
        assert found.traffic.excess["A"] == n / tile[1]
        assert found.traffic.excess["B"] == m / tile[0]


def test_loads_that_l1_may_serve_are_told_apart():
    given = {"m": 1024, "n": 1024, "k": 1024, "dtype": "float32", "backend": "cpu"}
    found = cg.analyze("NN", **given, kernel="naive", arch="sm_80").performance.traffic
    assert found.through_l1 == found.requested["A"] + found.requested["B"]
    assert str(found) == (
        "12.6 MB compulsory, 35.5 GB requested of L1 and L2 (A 256x, B 8,192x, C 8x), 35.4 GB of "
        "it by loads that L1 may serve"
    )
    # 16-byte cp.async and TMA bypass L1; loads of C do not.
    given["dtype"] = "float16"
    for kernel, arch in (("sm80_pipeline", "sm_80"), ("sm90_wgmma", "sm_90a")):
        found = cg.analyze("TN", **given, kernel=kernel, arch=arch).performance.traffic
        assert found.through_l1 == 0 and "requested of L2 (A " in str(found)
    read = cg.analyze("TN", **given, kernel="sm80_pipeline", arch="sm_80", beta=1)
    assert read.performance.traffic.through_l1 == 1024 * 1024 * 2


def test_what_is_in_scratch_is_not_the_operand():
    given = {"m": 256, "n": 512, "k": 8192, "dtype": "float16", "kernel": "sm80_pipeline",
             "arch": "sm_80", "backend": "cpu"}  # fmt: skip
    alone = cg.analyze("TN", **given, split_k=1).performance
    sliced = cg.analyze("TN", **given, split_k=8).performance
    assert sliced.traffic.excess["C"] == alone.traffic.excess["C"] == 1
    # Written and read once, in float32.
    assert sliced.traffic.requested["partial sums"] == 2 * 8 * 256 * 512 * 4
    assert alone.per_result.global_stores == 1
    assert sliced.per_result.global_stores == 8
    text = dict(sliced.lines())
    assert "C 1x, partial sums 8.39 MB)" in text["traffic"]
    assert text["per element of C"].endswith(", 8 partial sums stored")
    report = cg.analyze("TN", **given | {"k": 8191}, pack="AB", split_k=1)
    packed = report.performance.traffic
    (one,) = report.auxiliary
    read = {x: sum(row.launch.l2_sectors or 0 for row in one.rows if row.operand == x)
            for x in ("A", "B")}  # fmt: skip
    # Only pack reads the operand. It writes the packed copy, which the kernel reads.
    for name, rows in (("A", 256), ("B", 512)):
        kernels = sum(row.launch.l2_sectors for row in report[name].of("global"))
        assert packed.requested[name] == 32 * read[name] > 0
        assert packed.requested[f"packed {name}"] == 32 * kernels + rows * 8191 * 2 + rows * 2
    assert set(packed.requested) == {"A", "B", "C", "packed A", "packed B"}


def test_every_gpu_can_be_placed():
    for row in GPUS:
        found = performance(
            problem(512, 512, 512), Launch(16, 128, 0), f"sm_{row.cc}", [], None, row.name
        )
        assert found.gpu is row and found.roofline.seconds > 0


@pytest.mark.parametrize(
    ("gpu", "cluster", "n", "places", "full", "tail", "rounds"),
    [
        ("H100", (1, 1), 2944, 132, 1, 12, 2),  # 144 tiles
        ("H100", (2, 1), 2944, 132, 1, 12, 2),
        ("H100", (4, 2), 2944, 120, 1, 24, 2),  # clusters of 8 leave 12 multiprocessors unused
        ("H100", (1, 2), 2816, 132, 1, 12, 2),  # 132 tiles, and those of clusters beyond the edge
        ("H100", (1, 1), 2816, 132, 1, 0, 1),
        ("H100", (1, 1), 256, 132, 0, 12, 1),
        ("H100 PCIe", (1, 1), 2944, 114, 1, 30, 2),
    ],
)
def test_waves_of_a_persistent_grid_are_rounds_of_tiles(
    gpu, cluster, n, places, full, tail, rounds
):
    found = cg.analyze(
        "TN", m=1536, n=n, k=4096, dtype="float16", kernel="sm90_wgmma", tile=(128, 256, 64),
        cluster=cluster, gpu=gpu,
    )  # fmt: skip
    waves, text = found.performance.waves, " ".join(str(found).split())
    tiles = full * places + tail
    assert (waves.of, waves.places, waves.full, waves.tail_ctas) == ("tiles", places, full, tail)
    assert waves.efficiency == tiles / (rounds * places)
    assert found.launch.grid == min(tiles, places)
    assert f"rounds of tiles, one for each of {places} CTAs that run at a time, on the" in text
    assert (f"{full} full and a tail of {tail} tiles" if tail else ": no tail;") in text
