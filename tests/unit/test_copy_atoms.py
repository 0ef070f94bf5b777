"""Test atoms lane by lane: reductions, bulk copies, wide vectors, byte matrices, partial tiles."""

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import configure
from copy_search import asked, rows_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_analyze_copy import MODES, bank_wavefronts, bijections, fitting, requests_of, widest

from cute_gemm.api import analyze
from cute_gemm.copies.atoms import atom_name
from cute_gemm.copies.report import analyze_copy
from cute_gemm.cute.atoms import BYTE_ATOMS, MATRIX_ATOMS, CopyAtom
from cute_gemm.cute.choose import matrix_copy
from cute_gemm.cute.layout import Layout, Swizzle
from cute_gemm.cute.notation import parse
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import GemmError, OptionError, UnsupportedError
from cute_gemm.kernels.sm80.pipeline import Sm80Pipeline
from cute_gemm.problem.describe import from_sizes

# -- names ----------------------------------------------------------------------------------------


def test_matrices_by_either_name() -> None:
    for ours, cutes in (
        ("stmatrix.sync.aligned.m16n8.x2.trans.shared.b8", "SM100_U8x8_STSM_T"),
        ("ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32", "SM100_SU6_DU8x16_x1_LDSM_N"),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "SM75_U16x8_LDSM_T"),
    ):
        assert atom_name(ours).matrix is atom_name(cutes).matrix
    # CuTe has its own order of the row addresses of an m16n16.
    pair = [atom_name(name).matrix for name in ("ldmatrix.m16n16.x1.trans.b8", "SM100_U8x8_LDSM_T")]
    assert pair[0] and pair[1] and pair[0].name == pair[1].name and pair[0].order is None
    assert pair[1].order is not None


@pytest.mark.parametrize(
    ("operation", "name", "cutes"),
    [
        ("LdMatrix8x8x16bOp()", "ldmatrix.x1", True),
        ("LdMatrix8x8x16bOp(transpose=True, num_matrices=4)", "ldmatrix.x4.trans", True),
        ("cute.nvgpu.warp.LdMatrix8x8x16bOp(False, 2)", "ldmatrix.x2", True),
        ("make_copy_atom(warp.StMatrix8x8x16bOp(True, 4), Float16)", "stmatrix.x4.trans", True),
        ("LdMatrix8x16x8bOp(num_matrices=4, unpack_bits=4)", "ldmatrix.m8n16.x4.b4x16_p64", True),
        ("LdMatrix8x16x8bOp(False, 2, 6)", "ldmatrix.m8n16.x2.b6x16_p32", True),
        ("LdMatrix8x16x8bOp(num_matrices=4, unpack_bits=None)", "ldmatrix.x4", True),
        ("LdMatrix16x8x8bOp(transpose=True, num_matrices=2)", "ldmatrix.m16n16.x1.trans", True),
        ("LdMatrix16x8x8bOp(True, 4)", "ldmatrix.m16n16.x2.trans", True),
        ("LdMatrix16x16x8bOp(transpose=True, num_matrices=1)", "ldmatrix.m16n16.x1.trans", False),
        ("LdMatrix16x16x8bOp(num_matrices=2, transpose=True, unpack_bits=None)",
         "ldmatrix.m16n16.x2.trans", False),
        ("StMatrix16x8x8bOp(transpose=True, num_matrices=2)", "stmatrix.m16n8.x2.trans", True),
        ("LdMatrix16x16x8b Copy Operation\n  number of matrices = 2\n  transposed",
         "ldmatrix.m16n16.x2.trans", False),
        ("LdMatrix8x16x8b Copy Operation\n  number of matrices = 4\n  unpack 6b to 8b",
         "ldmatrix.m8n16.x4.b6x16_p32", True),
        ("StMatrix8x8x16b Copy Operation\n  number of matrices = 4", "stmatrix.x4", True),
    ],
)  # fmt: skip
def test_matrices_of_cute_dsl(operation: str, name: str, cutes: bool) -> None:
    """Test names. ``cutes``: the fragment is C++ CuTe's, and for m16n16 not PTX's."""
    found = atom_name(operation)
    assert found.matrix is not None and found.matrix.name == name and "\n" not in found.text
    every = [*BYTE_ATOMS, *MATRIX_ATOMS.values()]
    assert found.matrix in [atom for atom in every if bool(atom.cpp) is cutes]
    row = analyze_copy(tensor="(64,64):(64,1)", atom=operation, dtype="uint8").rows[0]
    assert row.instruction == name and row.space == "shared"


def test_matrices_that_cute_dsl_does_not_have() -> None:
    for operation, message in (
        (
            "LdMatrix16x16x8bOp(num_matrices=2)",
            "is unknown; expected one of LdMatrix16x16x8bOp("
            "transpose=True, num_matrices=1), LdMatrix16x16x8bOp(transpose=True, num_matrices=2)",
        ),
        ("LdMatrix16x8x8bOp(True, 1)", "expected one of LdMatrix16x8x8bOp(transpose=True, num_"),
        ("LdMatrix16x16x8bOp(True, 2, 4)", "expected one of LdMatrix16x16x8bOp(transpose=True, nu"),
        ("LdMatrix8x8x16bOp(False, 3)", "expected one of LdMatrix8x8x16bOp(transpose=False, num_m"),
        ("StMatrix32x8x8bOp(True, 2)", "expected one of LdMatrix8x8x16bOp, StMatrix8x8x16bOp, LdM"),
    ):
        with pytest.raises(OptionError) as caught:
            atom_name(operation)
        assert message in str(caught.value) and repr(operation) in str(caught.value)


GOOD = {"tensor": "(128,32):(32,1)", "threads": "(32,4):(4,1)", "values": "(1,8)"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"atom": "ld.global.v8.b32", "arch": "sm_90a"}, UnsupportedError,
         "atom 'ld.global.v8.b32' needs sm_100 or newer; arch is 'sm_90a'"),
        ({"atom": "red.global.add.v2.f32", "dtype": "float32", "arch": "sm_80"}, UnsupportedError,
         "needs sm_90 or newer"),
        ({"atom": "cp.async.bulk", "arch": "sm_80"}, UnsupportedError, "needs sm_90 or newer"),
        ({"atom": "tma", "arch": "sm_89"}, UnsupportedError, "needs sm_90 or newer"),
        ({"atom": "stmatrix.x4", "arch": "sm_80"}, UnsupportedError, "needs sm_90 or newer"),
        ({"atom": "ldmatrix.m16n16.x1.trans.b8", "dtype": "int8", "arch": "sm_100"},
         UnsupportedError, "needs sm_100a or newer, with its suffix a or f; arch is 'sm_100'"),
        ({"atom": "ld.global", "arch": "ampere"}, UnsupportedError, "expected one like 'sm_80'"),
        ({"atom": "ld.shared.256"}, OptionError, "has a width of 256 bits; expected one of 8"),
        ({"atom": "UniversalCopy<uint_bit_t<256>>"}, OptionError, "has a width of 256 bits"),
        ({"atom": "red.global.8"}, OptionError, "has a width of 8 bits; expected one of 16"),
        ({"atom": "red.global", "dtype": "int8"}, OptionError,
         "combines elements of 16 bits or more; int8 has 8"),
        ({"atom": "red.shared.add.v2.f32", "dtype": "float32"}, OptionError,
         "is a vector, which reductions of shared memory are not; float32 has 32"),
        ({"atom": "red.global", "smem": "(128,32):(32,1)"}, OptionError, "smem came with atom"),
        ({"atom": "red.add.f32"}, OptionError, "is unknown; expected one like"),
        ({"atom": "ldmatrix.m16n16.x1.trans.b8"}, OptionError,
         "transposes elements of 8 bits; float16 has 16"),
        ({"atom": "cp.async.bulk"}, OptionError, "threads='(32,4):(4,1)' does not go with atom"),
        ({"atom": "cp.async.bulk", "threads": None, "values": None, "tile": (1, 4)}, OptionError,
         "tile=(1,4) has 8 bytes; atom 'cp.async.bulk' moves multiples of 16"),
        ({"atom": "cp.async.bulk", "threads": None, "values": None, "tensor": "(128,32):(40,1)"},
         OptionError, "has tiles of (128,32) that are not each one run of bytes"),
        ({"atom": "cp.async.bulk", "threads": None, "values": None, "smem": "(128,32):(1,128)"},
         OptionError, "smem (128,32):(1,128) has tiles"),
        ({"atom": "cp.async.bulk", "threads": None, "values": None, "tile": (1, 32),
          "smem": "(128,32):(36,1)"}, OptionError, "does not begin at a multiple of 16 bytes"),
        ({"atom": "cp.async.bulk", "threads": None, "values": None, "extents": (100, 32)},
         OptionError, "extents=(100, 32) do not go with atom 'cp.async.bulk'"),
        ({"atom": "ld.shared", "extents": (100, 32)}, OptionError, "do not go with atom 'ld.sha"),
        ({"atom": "tma", "threads": None, "values": None, "tile": (8, 8), "extents": (100, 32)},
         OptionError, "does not go with atom 'tma'"),
        ({"atom": "ld.global", "extents": "100"}, OptionError, "extents='100'; expected two exte"),
        ({"atom": "ld.global", "extents": (100, 32), "tensor": "(128,32):(64,2)"}, OptionError,
         "expected a tile in two plain modes, one of stride 1"),
        ({"atom": "st.global", "extents": (100, 48)}, OptionError,
         "of extents (100,48) is not injective, and stored to: its rows are 48 elements long"),
        ({"atom": "ld.global", "tensor": "(100,32):(32,1)"}, OptionError,
         "do not divide; expected a multiple (and extents=, if the matrix has fewer)"),
    ],
)  # fmt: skip
def test_refusals(change: dict[str, Any], error: type[GemmError], message: str) -> None:
    with pytest.raises(error) as caught:
        analyze_copy(**GOOD | change)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_tile_may_be_longer_than_the_rows_of_the_matrix() -> None:
    (row,) = analyze_copy(tensor="(128,32):(24,1)", threads="(32,4):(4,1)", values="(1,8)",
                          atom="st.global.128", extents=(100, 24)).rows  # fmt: skip
    assert (row.launch.lanes, row.launch.bytes, row.good) == (300, 4800, True)


def test_what_a_report_of_a_matrix_shows() -> None:
    question = {"tensor": "(128,32):(4096,1)", "threads": "(32,4):(4,1)", "atom": "ld.global.128"}
    report = analyze_copy(**question, extents="1000x96")
    text = str(report)
    assert "the tensor is a tile of a matrix of (1000,96)" in text
    assert "per request of the edge tiles" in text and "The whole launch" in text
    assert report.to_dict()["extents"] == [1000, 96]
    # 1000 rows of 96 elements, 6 sectors each.
    assert (report.rows[0].launch.sectors, report.rows[0].edge_tiles) == (1000 * 6, 3)
    assert report.to_dict()["accesses"][0]["launch"]["lanes"] == 1000 * 96 // 8
    alone = analyze_copy(**question)
    assert alone.to_dict()["extents"] is None and "whole launch" not in str(alone)


def test_an_arch_that_has_it() -> None:
    wide = {"tensor": "(128,64):(64,1)", "threads": "(16,8):(8,1)", "values": "(1,8)",
            "dtype": "float32"}  # fmt: skip
    for arch in (None, "sm_100", "sm_120a"):
        assert analyze_copy(**wide, atom="ld.global.v8.b32", arch=arch).bits == 256
    for arch in (None, "sm_100a", "sm_120f"):
        (row,) = analyze_copy(tensor="(16,32):(32,1)", atom="ldmatrix.m16n16.x1.trans.b8",
                              dtype="int8", arch=arch).rows  # fmt: skip
        assert row.instruction == "ldmatrix.m16n16.x1.trans"


# -- vectors and reductions -----------------------------------------------------------------------


def touched(request: list[list[int]], size: int, base: int) -> set[int]:
    """Return the bytes of a request."""
    return {base + at * size + byte for lane in request for at in lane for byte in range(size)}


def expected(requests: list[list[list[int]]], size: int, base: int) -> dict[str, int]:
    """Return the counts of requests, byte by byte. Requests without active lanes are ignored."""
    bytes_ = [touched(request, size, base) for request in requests if any(request)]
    return {
        "requests": len(bytes_),
        "sectors": sum(len({byte // 32 for byte in some}) for some in bytes_),
        "lines": sum(len({byte // 128 for byte in some}) for some in bytes_),
        "ideal_sectors": sum(-(-len(some) // 32) for some in bytes_),
        "bytes": sum(map(len, bytes_)),
        "lanes": sum(bool(lane) for request in requests for lane in request),
    }


def figures(row: Any) -> dict[str, int]:
    names = ("requests", "sectors", "lines", "ideal_sectors", "bytes", "lanes")
    return {name: getattr(row.launch, name) for name in names}


@settings(deadline=None, max_examples=50)
@given(
    MODES, MODES, bijections((1, 2, 8, 16)), bijections((1, 2, 4, 8)),
    st.sampled_from([
        ("red.global", "float16", 16), ("red.global.add.noftz.f16x2", "float16", 32),
        ("red.global.add.v4.f32", "float32", 128), ("atom.global.add.f64", "float64", 64),
        ("red.global.add.s32", "int32", 32), ("ld.global.v8.b32", "float32", 256),
        ("st.global.v4.b64", "float64", 256), ("ld.global.v8.f32", "float16", 256),
        *(("ld.global", dtype, 0) for dtype in ("int8", "float16", "float32", "float64") * 2),
    ]),
    st.sampled_from([8, 16, 32, 64, 256]),
)  # fmt: skip
def test_vectors_and_reductions_by_brute_force(
    first: Any, second: Any, threads: Layout, values: Layout, atom: tuple[str, str, int],
    alignment: int,
) -> None:  # fmt: skip
    """Test atoms by brute force, with element types, and a width or 0 for the widest."""
    layout = Layout((first[0], second[0]), (first[1], second[1]))
    tile = np.array(threads.extents) * values.extents
    assume((np.array(layout.extents) % tile == 0).all())
    name, dtype, bits = atom
    distinct = len(np.unique(layout.table())) == layout.size
    assume(distinct or not name.startswith("st"))  # a reduction may have several lanes per element
    size = DTYPES[dtype].bytes
    width = (bits or 128) // (8 * size)
    together, aligned = False, False
    while True:
        if values.size % width == 0:
            requests = requests_of(layout, threads, values, width)
            together = all(
                lane == list(range(lane[0], lane[0] + width)) for one in requests for lane in one
            )
            aligned = fitting(requests, size, alignment)
            if width == 1 or (together and (aligned or 8 * size * width == bits)):
                break
        width //= 2
    report = analyze_copy(tensor=layout, threads=threads, values=values, atom=name, dtype=dtype,
                          base_alignment=alignment)  # fmt: skip
    (row,) = report.rows
    assert (row.bits, row.direction) == (8 * size * width, "load" if "ld" in name else "store")
    assert row.instruction == ".".join(name.split(".")[:2])
    base = alignment % 128
    assert figures(row) == expected(requests, size, base)
    starts = {base + lane[0] * size for request in requests for lane in request}
    assert (row.verdict == "misaligned") is any(at % (size * width) for at in starts)
    assert row.requests == len(requests)
    if not bits:
        assert row.lanes * len(requests) == pytest.approx(row.launch.lanes)
        sectors, ideal = row.launch.sectors, row.launch.ideal_sectors
        assert report.coalesced is (sectors == ideal)
        for fix in report.fixes[0]:
            better = fix.figures["ideal_sectors"] / fix.figures["sectors"]
            assert (better, fix.figures["bits"]) > (ideal / sectors, row.bits) or better == 1
    said = [text for text in report.findings if "is counted as a store; not counted" in text]
    assert len(said) == name.startswith(("red", "atom"))
    if said:
        most = max(
            [lane[0] for lane in request].count(at[0]) for request in requests for at in request
        )
        assert (f"up to {most} lanes that share an address" in said[0]) is (most > 1)
        assert ("the return of the old values" in said[0]) is name.startswith("atom")


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["(32,1)", "(1,32)", "(40,1)", "(1,33)", "(0,1)"]),
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3)),
    bijections((1, 2, 8, 16)), bijections((1, 2, 4)),
    st.sampled_from([
        *product(("ld.shared", "st.shared"), ("int8", "float16", "float32", "float64")),
        *product(("red.shared", "atom.shared"), ("float16", "int32", "float64")),
    ]),
)  # fmt: skip
def test_shared_memory_by_brute_force(
    steps: str, bms: tuple[int, int, int], threads: Layout, values: Layout, kind: tuple[str, str]
) -> None:
    layout = Layout((32, 32), parse(f"(32,32):{steps}").stride, Swizzle(*bms[:2], bms[0] + bms[2]))
    tile = np.array(threads.extents) * values.extents
    atom, dtype = kind
    reduces = atom.startswith(("red", "atom"))
    assume((np.array(layout.extents) % tile == 0).all() and (reduces or steps != "(0,1)"))
    size = DTYPES[dtype].bytes
    width = 1 if reduces else widest(layout, threads, values, size, 128)
    report = analyze_copy(tensor=layout, threads=threads, values=values, atom=atom, dtype=dtype)
    (row,) = report.rows
    assert (row.instruction, row.bits) == (atom, 8 * size * width)
    assert row.direction == ("load" if atom == "ld.shared" else "store")
    requests = requests_of(layout, threads, values, width)
    taken = ideal = 0
    for request in requests:
        words = [{byte // 4 for byte in touched([lane], size, 0)} for lane in request]
        group = min(32, 128 // (size * width))
        more = bank_wavefronts([words[i : i + group] for i in range(0, len(words), group)])
        taken, ideal = taken + more[0], ideal + more[1]
    assert (row.launch.wavefronts, row.launch.ideal_wavefronts) == (taken, ideal)
    assert row.launch.requests == len(requests)
    assert report.conflict_free is (taken == ideal)
    assert not reduces or "an operation that shared memory lacks" in report.findings[-1]


# -- bulk copies of a run of bytes ----------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([8, 16, 24, 64]), st.sampled_from([8, 16, 40, 64]),
    st.sampled_from([0, 1, 4, 8, 16, 24]), st.booleans(), st.sampled_from([1, 2, 8]),
    st.sampled_from(["int8", "float16", "float32"]), st.sampled_from([8, 16, 32, 256]),
    st.sampled_from(["cp.async.bulk", "cp.async.bulk.store", "SM90_BULK_COPY_G2S"]),
)  # fmt: skip
def test_bulk_copies_by_brute_force(
    rows: int, columns: int, padding: int, transposed: bool, several: int, dtype: str,
    alignment: int, atom: str,
) -> None:  # fmt: skip
    size, pitch = DTYPES[dtype].bytes, columns + padding
    several = several if padding == 0 else 1
    assume(columns * several * size % 16 == 0 and rows % several == 0)
    tensor = (
        Layout((columns, rows), (1, pitch)) if transposed else Layout((rows, columns), (pitch, 1))
    )
    tile = (columns, several) if transposed else (several, columns)
    report = analyze_copy(
        tensor=tensor, tile=tile, atom=atom, dtype=dtype, base_alignment=alignment
    )
    (row,) = report.rows
    runs = [
        [[row * pitch + at for row in range(first, first + several) for at in range(columns)]]
        for first in range(0, rows, several)
    ]
    base = alignment % 128
    assert figures(row) == expected(runs, size, base)
    assert (row.bits, row.lanes, report.tile) == (8 * size * several * columns, 1, tile)
    assert row.direction == ("store" if "store" in atom else "load")
    faults = any((base + run[0][0] * size) % 16 for run in runs)
    assert (row.verdict == "misaligned") is faults
    assert bool(re.search("not a multiple of (its )?16 bytes", row.why)) is faults
    assert report.conflict_free
    for fix in report.fixes[0]:  # if the access faults, any fix that does not
        assert faults or fix.figures["sectors"] <= row.sectors


def test_a_bulk_copy_of_the_whole_tensor_and_its_place() -> None:
    whole = analyze_copy(tensor="(128,32):(32,1)", atom="cp.async.bulk")
    assert (whole.tile, whole.rows[0].requests, whole.rows[0].sectors) == ((128, 32), 1, 256)
    rows = {"tensor": "(128,32):(4096,1)", "tile": (1, 32), "smem": "(128,32):(40,1)"}
    report = analyze_copy(**rows, atom="cp.async.bulk")
    (row,) = report.rows
    assert "<svg" not in report.to_html()  # there are no lanes to draw
    assert (row.requests, row.sectors, row.launch.lines) == (128, 2, 128)


# -- byte matrices -------------------------------------------------------------------------------


def received(atom: CopyAtom, rows: list[list[Any]]) -> list[list[Any]]:
    """Return the bytes of each thread after an instruction in which lane ``i`` has row ``i``."""
    number = int(atom.name.split(".x")[1][0])
    out: list[list[Any]] = []
    for thread in range(32):
        j, g = thread % 4, thread // 4
        held: list[Any] = []
        for matrix in range(number):
            if "m16n16" in atom.name:
                at = rows[16 * matrix : 16 * matrix + 16]
                one = [at[4 * j + i][g] for i in range(4)]
                other = [at[4 * j + i][g + 8] for i in range(4)]
                if atom.cpp:  # CuTe has another order of the registers' bytes
                    one, other = one[:2] + other[:2], one[2:] + other[2:]
                held += one + other
                continue
            at = rows[8 * matrix : 8 * matrix + 8]
            if "m16n8" in atom.name:  # the values that a thread stores
                held += [at[2 * j + i][g + 8 * half] for half in (0, 1) for i in (0, 1)]
            elif "trans" in atom.name:  # pairs of bytes are not split
                held += [at[2 * j + i][2 * g + byte] for i in (0, 1) for byte in (0, 1)]
            else:
                held += at[g][4 * j : 4 * j + 4]
        out.append(held)
    return out


@pytest.mark.parametrize("atom", [*BYTE_ATOMS, *MATRIX_ATOMS.values()], ids=lambda a: a.name)
@pytest.mark.parametrize("axis", [0, 1])
def test_threads_hold_what_the_rows_have(atom: CopyAtom, axis: int) -> None:
    copy = matrix_copy(atom, 1, (64, 64), axis)
    assert copy is not None
    lanes = copy.source.reshape(32, -1, 16, 2)[:, 0]
    rows = [[tuple(place) for place in lane] for lane in lanes.tolist() if lane[0][0] >= 0]
    assert len(rows) == (2 if "m16n16" in atom.name else 1) * 8 * int(atom.name.split(".x")[1][0])
    held = [[tuple(place) for place in one] for one in copy.partition.tolist()]
    assert held == received(atom, rows)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(BYTE_ATOMS),
    st.sampled_from([(64, 64), (32, 128), (128, 32)]),
    st.sampled_from([0, 16, 32, 48]),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.booleans(),
)
def test_matrices_of_bytes_by_brute_force(
    atom: CopyAtom, extents: tuple[int, int], padding: int, bits: tuple[int, int], rows: bool
) -> None:
    stride = (extents[1] + padding, 1) if rows else (1, extents[0] + padding)
    layout = Layout(extents, stride, Swizzle(bits[0], 4, bits[0] + bits[1]))
    (row,) = analyze_copy(tensor=layout, atom=atom.cpp or atom.name, dtype="int8").rows
    number = int(atom.name.split(".x")[1][0])
    per = 16 if "m16n16" in atom.name else 8
    taken = ideal = 0
    seen = set()
    for request in row.access.offsets.tolist():
        starts = [at for at in request if at >= 0]
        assert len(starts) == per * number and all(at % 16 == 0 for at in starts)
        seen |= set(starts)
        phases = [
            [set(range(at // 4, at // 4 + 4)) for at in starts[first : first + 8]]
            for first in range(0, len(starts), 8)
        ]
        more = bank_wavefronts(phases)
        taken, ideal = taken + more[0], ideal + more[1]
    assert (row.launch.wavefronts, row.launch.ideal_wavefronts) == (taken, ideal)
    assert row.lanes == per * number and len(seen) * 16 == extents[0] * extents[1]


# -- partial tiles at the end of a matrix --------------------------------------------------------


def visited(
    layout: Layout, extents: tuple[int, int], threads: Layout, values: Layout, width: int
) -> list[list[list[int]]]:
    """Return offsets that each lane moves, for each request of all tiles, within the matrix."""
    stride: Any = layout.stride
    one = requests_of(Layout(layout.extents, (1 << 20, 1)), threads, values, width)
    out = []
    for m in range(0, extents[0], layout.extents[0]):
        for n in range(0, extents[1], layout.extents[1]):
            for request in one:
                places = [[(m + (at >> 20), n + (at & 0xFFFFF)) for at in lane] for lane in request]
                inside = [
                    [at for at in lane if at[0] < extents[0] and at[1] < extents[1]]
                    for lane in places
                ]
                out.append([[i * stride[0] + j * stride[1] for i, j in lane] for lane in inside])
    return out


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([(32, 16), (16, 32), (64, 8)]),
    st.tuples(st.integers(1, 100), st.integers(1, 70)),
    st.booleans(), st.sampled_from([0, 3, 8, 40]),
    bijections((2, 4, 8)), bijections((1, 2, 4, 8)),
    st.sampled_from(["int8", "float16", "float32", "float64"]),
    st.sampled_from(["ld.global", "st.global", "red.global", "cp.async", "cp.async.64"]),
    st.sampled_from([16, 64, 256]),
)  # fmt: skip
def test_tiles_at_the_end_by_brute_force(
    tile: tuple[int, int], extents: tuple[int, int], rows: bool, padding: int, threads: Layout,
    values: Layout, dtype: str, atom: str, alignment: int,
) -> None:  # fmt: skip
    assume(not (np.array(tile) % np.multiply(threads.extents, values.extents)).any())
    assume(not (atom == "red.global" and dtype == "int8"))
    pitch = max(extents[rows], tile[rows]) + padding
    layout = Layout(tile, (pitch, 1) if rows else (1, pitch))
    question = {"tensor": layout, "threads": threads, "values": values, "atom": atom,
                "dtype": dtype, "base_alignment": alignment}  # fmt: skip
    (row,) = rows_of(asked(question | {"extents": extents}))
    size = DTYPES[dtype].bytes
    width = row.bits // (8 * size)
    requests = visited(layout, extents, threads, values, width)
    assert figures(row) == expected(requests, size, alignment % 128)
    assert row.launch.off == len(requests) - row.launch.requests
    full = [extent // step for extent, step in zip(extents, tile, strict=True)]
    every = [-(-extent // step) for extent, step in zip(extents, tile, strict=True)]
    assert (row.interior_tiles, row.edge_tiles) == (
        full[0] * full[1], every[0] * every[1] - full[0] * full[1],
    )  # fmt: skip
    # Only cp.async may have partial vectors; without an end, the vector is that of the tile.
    along = extents[rows]
    if row.instruction != "cp.async":
        assert along % width == 0
    (alone,) = rows_of(asked(question))
    assert row.bits <= alone.bits and (row.bits == alone.bits or along % (alone.bits // 8 // size))


@settings(deadline=None, max_examples=25)
@given(
    st.tuples(st.integers(1, 100), st.integers(1, 12)),
    st.sampled_from(["(32,32):(32,1)", "(32,32):(40,1)", "Sw<2,3,3> o 0 o (32,32):(32,1)"]),
    st.sampled_from(
        ["ld.global.128", "cp.async.128", "SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>"]
    ),
)
def test_stores_to_shared_memory_under_the_predicate(
    extents: tuple[int, int], home: str, atom: str
) -> None:
    whole = (extents[0], 8 * extents[1])
    threads, values = Layout((8, 4), (4, 1)), Layout((1, 8), (0, 1))
    question = {"tensor": "(32,32):(96,1)", "extents": whole, "smem": home, "atom": atom,
                "threads": threads, "values": values}  # fmt: skip
    store = rows_of(asked(question))[1]
    places = requests_of(parse(home), threads, values, 8)
    off = visited(Layout((32, 32), (96, 1)), whole, threads, values, 8)
    taken = ideal = requests = 0
    for number, request in enumerate(off):
        lanes = [
            set(range(at[0] // 2, at[0] // 2 + 4)) if some or "ZFILL" in atom else set()
            for at, some in zip(places[number % len(places)], request, strict=True)
        ]
        requests += any(lanes)
        more = bank_wavefronts([lanes[i : i + 8] for i in range(0, 32, 8)])
        taken, ideal = taken + more[0], ideal + more[1]
    total = store.launch
    assert (total.requests, total.wavefronts, total.ideal_wavefronts) == (requests, taken, ideal)


@pytest.mark.parametrize(("m", "k", "lda"), [(1000, 96, 96), (200, 72, 104), (100, 24, 40)])
@pytest.mark.parametrize("op", ["TN", "NT"])
def test_a_tile_at_the_end_counts_as_the_kernels_rows_of_it(
    op: str, m: int, k: int, lda: int
) -> None:
    lda = lda if op == "TN" else m + 8
    given: Any = {"m": m, "n": 128, "k": k, "dtype": "float16", "lda": lda}
    problem = from_sizes(op, **given)
    chosen: Any = {"tile": (128, 128, 32), "warps": (2, 2)}
    config = configure(Sm80Pipeline(), problem, "sm_80", **chosen)
    report = analyze(op, **given, kernel="sm80_pipeline", arch="sm_80", **chosen)
    (plan,) = (plan for plan in config.operands if plan.source == "A")
    threads, values = plan.gmem_copy.layouts
    home: Any = plan.smem_layout
    stride = (lda, 1) if op == "TN" else (1, lda)
    copy = analyze_copy(
        tensor=Layout((128, 32), stride), extents=(m, k), threads=threads, values=values,
        smem=Layout(home.shape[:2], home.stride[:2], home.swizzle), atom="cp.async.128",
        dtype="float16",
    )  # fmt: skip
    kernels = [row for row in report["A"].rows if row.instruction == "cp.async"]
    own = [row.launch for row in kernels if row.space == "global"]
    for name in ("requests", "off", "lanes", "bytes", "sectors", "ideal_sectors", "lines",
                 "l2_sectors"):  # fmt: skip
        total = sum(getattr(one, name) for one in own)
        assert getattr(copy.rows[0].launch, name) == total, name
    assert copy.rows[0].edge_tiles == sum(row.edge_tiles or 0 for row in kernels)
