"""Test ``thin``: elements of lanes, unsupported problems, selection, every program executed."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import OPS, THIN, placed, refusal, stored_shapes

import cute_gemm as cg
from cute_gemm.arch import Arch
from cute_gemm.cute.atoms import MMA_ATOMS
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels import registry
from cute_gemm.kernels.thin.kernel import Thin
from cute_gemm.kernels.thin.structure import ThinConfig
from cute_gemm.plan.interpreted import execute
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.verify import verify

#: Pairs of types are in fp8_cases.
TYPES = tuple(name for name in Thin.dtypes if " x " not in name)
KERNEL = registry.get("thin")
assert isinstance(KERNEL, Thin)


def operands(
    op: str, m: int, n: int, k: int, dtype: str, pad: int = 0, order: str = "F", batch: int = 1
) -> list[np.ndarray]:
    """Return stored A, B and C with random numbers, and ``pad`` elements between columns."""
    random = np.random.default_rng(m + n + k)
    out = "int32" if dtype == "int8" else dtype
    stored = [(shape, dtype, "F") for shape in stored_shapes(op, m, n, k)]
    stored += [((m, n), out, order)]
    lead = (batch,) * (batch > 1)
    return [placed((*lead, *x), *kind, pad, random=random)[0] for x, *kind in stored]


def traced(
    op: str, m: int, n: int, k: int, type: str, beta: complex = 0.5, arch: str = "sm_90a",
    **given: Any,
) -> cg.Plan:  # fmt: skip
    """Execute a problem, and check the result and the reported accesses."""
    dtype, _, compute = type.partition("/")
    options = {name: given.pop(name) for name in ("tile", "warps", "stages") if name in given}
    A, B, C = operands(op, m, n, k, dtype, **given)
    plan = cg.plan(op, A, B, C, kernel="thin", backend="cpu", arch=arch, compute=compute or None,
                   **options)  # fmt: skip
    scalars = (3, -2 * bool(beta)) if dtype == "int8" else (-1.5, beta)
    if not beta and dtype != "int8":
        C[...] = np.nan  # C must not be read
    trace = plan.trace(A, B, C, alpha=scalars[0], beta=scalars[1])
    assert trace.verdict.ok, trace.verdict
    assert not trace.differences, trace.differences
    return plan


def spread() -> list[tuple[Any, ...]]:
    """Return cases of each type, op and width, with varying thin modes, orders, paddings, archs."""
    found = []
    for number, (type, op) in enumerate(product(TYPES, OPS)):
        t = THIN[number % len(THIN)]
        m, n = (t, 40 + number) if number // 2 % 2 else (40 + number, t)
        size = DTYPES[type.partition("/")[0]].bytes
        k = (1200 if size == 1 else 600 if size == 2 else 270) + number % 3
        more = {
            "pad": (0, 1, 16, 3)[number % 4],
            "order": "FC"[number // 3 % 2],
            "beta": 0.5 * (number % 5 > 0),
            "arch": ("sm_90a", "sm_80")[number % 7 == 3],
            "batch": 1 + 2 * (number % 6 == 5),
        }
        found.append((op, m, n, k, type, more))
    return found


@pytest.mark.parametrize(
    ("op", "m", "n", "k", "type", "more"),
    spread(),
    ids=lambda x: None if isinstance(x, dict) else x,
)
def test_every_program_computes_and_accesses_what_it_says(op, m, n, k, type, more):
    traced(op, m, n, k, type, **more)


@pytest.mark.matrix
@pytest.mark.parametrize("t", THIN)
@pytest.mark.parametrize("type", TYPES)
def test_all_of_them(type, t):
    for number, (op, pad, thin) in enumerate(product(OPS, (0, 1, 2, 16), "mn")):
        m, n = (t, 45) if thin == "m" else (45, t)
        order = "FC"[number % 2]
        traced(op, m, n, 300 + number, type, pad=pad, order=order, beta=0.5 * (number % 3))


@pytest.mark.parametrize("op", ["TN", "NN", "NT"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_a_vector_whose_elements_lie_together_is_read_in_vectors(op, dtype):
    """Test vectors with a leading dimension of 1, which have no stride along the other mode."""
    plan = traced(op, 1, 50, 333, dtype)
    assert plan.config.operation.majors[0] == "K" and plan.config.operation.bytes[0] == 16
    plan = traced(op[::-1].translate({78: 84, 84: 78}), 50, 1, 333, dtype, order="C")
    assert plan.config.operation.majors[1] == "K" and plan.config.operation.bytes[1] == 16


@pytest.mark.parametrize("options", [
    {"tile": (4, 16, 128)}, {"tile": (4, 64, 64), "warps": 4, "stages": 2}, {"warps": 1},
    {"tile": (32, 8, 256), "stages": 8}, {"tile": (1, 32, 512), "warps": 16},
])  # fmt: skip
def test_tiles_warps_and_stages(options):
    traced("TN", 19, 70, 700, "float32", **options)
    traced("TT", 19, 70, 700, "float32", **options)


def test_short_k_and_no_k():
    for k in (0, 1, 7, 33):
        traced("TN", 5, 40, k, "bfloat16")
        traced("NT", 40, 5, k, "complex64")


@pytest.mark.parametrize("op", ["CN", "NC", "CC", "CT"])
@pytest.mark.parametrize("thin", ["m", "n"])
def test_the_conjugate_is_of_the_operand_that_is_meant(op, thin):
    m, n = (3, 40) if thin == "m" else (40, 3)
    A, B, C = operands(op, m, n, 70, "complex64")
    plan = cg.plan(op, A, B, C, kernel="thin", backend="cpu", arch="sm_80")
    before = C.copy(order="F")
    execute(plan, A, B, C, 1.5 - 0.5j, 2 + 1j)
    assert verify(plan.problem, A, B, C, C=before, alpha=1.5 - 0.5j, beta=2 + 1j).ok


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_scalars_are_read_where_they_are_and_alpha_zero_reads_nothing(dtype):
    A, B, C = operands("TN", 6, 50, 300, dtype)
    plan = cg.plan("TN", A, B, C, kernel="thin", backend="cpu", arch="sm_90a")
    before = C.copy(order="F")
    places = {"alpha_ptr": np.float32([2.5]), "beta_ptr": np.float32([-0.5])}
    execute(plan, A, B, C, 7, 9, places=places)
    assert verify(plan.problem, A, B, C, C=before, alpha=2.5, beta=-0.5).ok
    A[...], B[...], C[...] = np.nan, np.nan, before
    execute(plan, A, B, C, 0, 0.75)
    assert verify(plan.problem, A, B, C, C=before, alpha=0, beta=0.75).ok


def test_a_shared_operand_of_a_batch():
    A, B, C = operands("TN", 4, 50, 140, "float32", batch=3)
    plan = cg.plan("TN", A[0], B, C, kernel="thin", backend="cpu", arch="sm_90a")
    trace = plan.trace(A[0], B, C, beta=1)
    assert trace.agrees, trace


# -- elements of lanes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [name for name, atom in MMA_ATOMS.items() if atom.threads == 32 and "x16_F64" not in name],
)
def test_registers_of_fragments_are_words_of_k_by_eights_of_rows(name):
    """Test that lanes have the rows and k of MMA fragments that the template assumes."""
    atom = MMA_ATOMS[name]
    m, lane = atom.shape_mnk[0], np.arange(32)[:, None]
    a_row, a_k = atom.a.table() % m, atom.a.table() // m
    b_row, b_k = atom.b.table() % 8, atom.b.table() // 8
    assert (b_row == lane // 4).all() and (a_row % 8 == lane // 4).all()
    # A lane has the same k of each row of A as of a column of B, in the same order.
    for eight in range(m // 8):
        mine = a_row // 8 == eight
        assert (a_k[mine].reshape(32, -1) == b_k).all()
    c_row, c_column = atom.c.table() % m, atom.c.table() // m
    value = np.arange(c_row.shape[1])
    assert (c_row == lane // 4 + value // 2 * 8).all()
    assert (c_column == lane % 4 * 2 + value % 2).all()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("type", TYPES)
def test_lanes_share_a_tile_without_gaps(type, op):
    """Test that each element of a k-tile has one lane, and each accumulator of a warp a place."""
    dtype, _, compute = type.partition("/")
    for extents in ({"m": 9, "n": 4096}, {"m": 4096, "n": 9}, {"m": 1, "n": 777}):
        plan = cg.plan(op, **extents, k=500, dtype=dtype, compute=compute or None, kernel="thin",
                       arch="sm_90a", backend="cpu")  # fmt: skip
        for config in (one.config for one in plan.candidates()):
            check_structure(config)


def check_structure(config: ThinConfig) -> None:
    [picture] = KERNEL.pictures(config)
    rows, columns = picture.extents
    places = picture.table[..., 0] * columns + picture.table[..., 1]
    assert np.array_equal(np.sort(places, axis=None), np.arange(rows * columns))
    assert len(np.unique(config.accumulators)) == config.accumulators.size == rows * config.columns
    for which, part in enumerate((config.large, config.few)):
        step = part.width * config.operation.a.bytes
        waiting = config.places[which]
        assert len(np.unique(waiting // step)) == waiting.size and not (waiting % step).any()


@pytest.mark.parametrize("given", [
    ("TN", 4, 8192, "bfloat16"), ("NT", 8192, 17, "float16"), ("NN", 7, 8192, "float64"),
    ("TT", 3, 8192, "complex64"),
])  # fmt: skip
def test_what_waits_in_shared_memory_meets_no_conflicts(given):
    op, m, n, dtype = given
    report = cg.analyze(op, m=m, n=n, k=4096, dtype=dtype, kernel="thin", arch="sm_90a")
    large = "B" if m < n else "A"
    rows = [row for row in report.rows if row.operand == large and row.space == "shared"]
    assert {row.direction for row in rows} == {"load", "store"}
    assert all(row.launch.conflicts == 0 for row in rows)
    [load] = [row for row in report.rows if row.operand == large and row.space == "global"]
    assert load.bits == 128 and load.good


def test_cpp_deals_lanes_out_as_python_does():
    for op, dtype in (("TT", "float16"), ("TN", "int8"), ("NT", "complex64")):
        plan = cg.plan(op, m=5, n=4096, k=999, dtype=dtype, kernel="thin", arch="sm_80",
                       backend="cpu")  # fmt: skip
        assert plan.proof.source.count("static_assert") == 7
        assert "Config::Large::row" in plan.proof.source


# -- unsupported problems and selection -----------------------------------------------------------


@pytest.mark.parametrize(("given", "said"), [
    ({"m": 33, "n": 33}, "m=33, n=33: kernel 'thin' takes m or n up to 32"),
    ({"m": 33, "n": 4, "thin": "m"}, "m=33, n=4: kernel 'thin' takes m or n up to 32"),
    ({"thin": "k"}, "thin='k' is unknown"),
    ({"warps": 3}, "warps=3"),
    ({"stages": 9}, "stages=9 is out of range; expected 1 to 8"),
    ({"min_ctas": 0}, "min_ctas must be 1 or more"),
    ({"tile": (8, 24, 256)}, "each extent must be a power of two"),
    ({"tile": (8, 8, 256)}, "takes 16 to 256 along n, 8 to 32 along m"),
    ({"tile": (8, 256, 512), "min_ctas": 4}, "registers of a thread, which has 64"),
    ({"lda": 4097, "ldb": 4097, "stages": 4}, "vectors of 2 bytes of the large operand"),
    ({"tile": (8, 64, 512), "stages": 8}, "bytes of shared memory"),
])  # fmt: skip
def test_what_is_refused(given, said):
    sizes = {"m": 8, "n": 4096, "k": 4096, "dtype": "bfloat16", "arch": "sm_90a", **given}
    with pytest.raises((OptionError, UnsupportedError), match=said):
        cg.plan("TN", **sizes, kernel="thin", backend="cpu")


#: Other kernels that are selected for few rows or columns, by type.
CHOSEN = {
    "float16": ("sm80_pipeline",),
    "bfloat16": ("sm80_pipeline",),
    "float64": ("thin", "sm80_pipeline"),
    "complex64": ("double_buffered", "thin"),
    "complex128": ("sm80_pipeline", "thin"),
}


@pytest.mark.parametrize("type", TYPES)
def test_it_is_chosen_for_what_is_thin(type):
    """Test kernel selection for few rows or columns, on a GPU without wgmma for some types.

    With wgmma, another kernel of its types reads at memory speed. Many columns by FMA are bound by
    multiplications, at which other kernels are faster. For the types in `CHOSEN`, another kernel is
    faster on an H200: 37 and 46 us of bfloat16 at 14160x16x4688, 38 and 56 of complex64 at
    16x8560x784, 24 and 48 of complex128 at 5466x14x589.
    """
    dtype, _, compute = type.partition("/")
    gpu = "A100" if type in registry.get("sm90_wgmma").dtypes else "H200"
    most = {"complex64": 8, "complex128": 4}.get(type, 16)
    for op, t in product(OPS, (1, 4, most)):
        for extents in ({"m": t, "n": 8192}, {"m": 8192, "n": t}):
            plan = cg.plan(op, **extents, k=8192, dtype=dtype, compute=compute or None,
                           gpu=gpu, backend="cpu")  # fmt: skip
            assert plan.kernel in CHOSEN.get(type, ("thin",)), plan.why
    plan = cg.plan("TN", m=64, n=8192, k=8192, dtype=dtype, compute=compute or None,
                   arch="sm_90a", backend="cpu")  # fmt: skip
    assert "thin" not in {one.kernel.name for one in plan.candidates()}


def test_every_candidate_fits_its_registers():
    """Test spills. Element loads of the large operand need the most registers."""
    for type, t, (m, n), odd in product(TYPES, (1, 16, 32), ((0, 1), (1, 0)), (0, 1)):
        dtype, _, compute = type.partition("/")
        extents = (t, 7000)
        problem = from_sizes(
            "TT", m=extents[m], n=extents[n], k=640 + odd, dtype=dtype, compute=compute or None,
            lda=8192 + odd, ldb=8192 + odd,
        )  # fmt: skip
        legal = KERNEL.legal(problem, Arch("sm_90a"), {})
        assert legal
        for config in legal:
            assert KERNEL.launch(config, problem).smem <= Arch("sm_90a").shared_limit
            assert refusal(KERNEL, replace(config, min_ctas=1), problem, "sm_90a") == ""
