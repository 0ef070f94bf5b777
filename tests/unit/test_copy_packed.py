"""Test copies of 4-bit and 6-bit elements: by brute force over bits, as byte tiles, and errors."""

import json
from math import gcd
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_analyze_copy import bank_wavefronts

from cute_gemm.copies.elements import element
from cute_gemm.copies.report import analyze_copy
from cute_gemm.cute.layout import Layout, Swizzle
from cute_gemm.errors import GemmError, NotationError, OptionError


def moved(
    layout: Layout, threads: Layout, values: Layout, bits: int, width: int
) -> list[list[set[int]]]:
    """Return the bytes of each lane of each request, from the addresses of single bits.

    ``width``: bits of a vector. A lane's bits must be contiguous whole bytes.
    """
    (tm, tn), (vm, vn) = threads.extents, values.extents
    held: dict[tuple[int, int], tuple[int, int]] = {}
    for i, j, p, q in np.ndindex(tm, tn, vm, vn):
        held[int(threads(i, j)), int(values(p, q))] = (i * vm + p, j * vn + q)
    out = []
    for m in range(0, layout.extents[0], tm * vm):
        for n in range(0, layout.extents[1], tn * vn):
            for warp in range(0, threads.size, 32):
                lanes = []
                for thread in range(warp, min(warp + 32, threads.size)):
                    places = [held[thread, value] for value in range(values.size)]
                    lanes.append([
                        int(layout(m + i, n + j)) * bits + bit
                        for i, j in places for bit in range(bits)
                    ])  # fmt: skip
                for first in range(0, values.size * bits, width):
                    vectors = [lane[first : first + width] for lane in lanes]
                    for vector in vectors:
                        assert vector == list(range(vector[0], vector[0] + width))
                        assert vector[0] % width == 0
                    out.append([{bit // 8 for bit in vector} for vector in vectors])
    return out


TYPES = st.sampled_from(["int4", "e2m1", "e3m2", "float6_e2m3fn"])


@st.composite
def copies(draw: Any, swizzled: bool = False) -> dict[str, Any]:
    """Draw a copy of elements along either mode that is equivalent to a copy of bytes."""
    dtype = draw(TYPES)
    bits = element(dtype)[1]
    many = 8 // gcd(8, bits)
    vector = many * draw(st.sampled_from([1, 2, 4, 8, 16]))
    along, across = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([4, 8, 16, 32]))
    extent = vector * along * draw(st.sampled_from([1, 2]))
    assume(extent * across <= 8192)
    pitch = extent + many * draw(st.sampled_from([0, 0, 1, 2, 4, 16, 64]))
    rows = draw(st.booleans())
    shape, stride, value = (across, extent), (pitch, 1), (1, vector)
    threads = draw(st.sampled_from([(across, along), (across // 4, along)]))
    order = (threads[1], 1) if draw(st.booleans()) else (1, threads[0])
    if not rows:
        shape, stride, value, threads, order = (
            x[::-1] for x in (shape, stride, value, threads, order)
        )
    swizzle = None
    if swizzled and bits == 4 and draw(st.booleans()):
        swizzle = Swizzle(*draw(st.sampled_from([(1, 5, 3), (2, 5, 3), (3, 4, 3), (2, 3, 2)])))
    return {
        "tensor": Layout(shape, stride, swizzle), "threads": Layout(threads, order),
        "values": Layout(value, (vector, 1) if rows else (1, vector)), "dtype": dtype,
    }  # fmt: skip


@settings(deadline=None, max_examples=15)
@given(copies(), st.sampled_from([16, 64, 256]))
def test_global_by_brute_force(question: dict[str, Any], alignment: int) -> None:
    report = analyze_copy(**question, atom="ld.global", base_alignment=alignment)
    (row,) = report.rows
    bits = element(question["dtype"])[1]
    requests = moved(question["tensor"], question["threads"], question["values"], bits, row.bits)
    sectors = ideal = lines = used = 0
    for request in requests:
        touched = {byte + alignment % 128 for lane in request for byte in lane}
        sectors += len({byte // 32 for byte in touched})
        lines += len({byte // 128 for byte in touched})
        ideal += -(-len(touched) // 32)
        used += len(touched)
    total = row.launch
    assert (total.requests, total.sectors, total.ideal_sectors) == (len(requests), sectors, ideal)
    assert (total.lines, total.bytes) == (lines, used)
    assert report.coalesced is (sectors == ideal)
    # A vector of twice the width does not fit.
    if row.bits < 128 and (question["values"].size * bits) % (2 * row.bits) == 0:
        with pytest.raises(AssertionError):
            moved(question["tensor"], question["threads"], question["values"], bits, 2 * row.bits)
    repeats(question | {"atom": "ld.global", "base_alignment": alignment}, report)


@settings(deadline=None, max_examples=15)
@given(copies(swizzled=True), st.sampled_from(["ld.shared", "st.shared"]))
def test_shared_by_brute_force(question: dict[str, Any], atom: str) -> None:
    layout = question["tensor"]
    assume(len(np.unique(layout.table())) == layout.size)  # a swizzle may not be injective
    report = analyze_copy(**question, atom=atom)
    (row,) = report.rows
    bits = element(question["dtype"])[1]
    requests = moved(question["tensor"], question["threads"], question["values"], bits, row.bits)
    group = min(32, 1024 // row.bits)
    taken = ideal = 0
    for request in requests:
        words = [{byte // 4 for byte in lane} for lane in request]
        more = bank_wavefronts([words[i : i + group] for i in range(0, len(words), group)])
        taken, ideal = taken + more[0], ideal + more[1]
    assert (row.launch.wavefronts, row.launch.ideal_wavefronts) == (taken, ideal)
    assert row.launch.requests == len(requests)
    repeats(question | {"atom": atom}, report)


def repeats(question: dict[str, Any], report: Any) -> None:
    """Check that the report after every fix has the fix's figures."""
    for place, fixes in enumerate(report.fixes):
        for fix in fixes:
            row = analyze_copy(**question | fix.change).rows[place]
            for name, figure in fix.figures.items():
                assert getattr(row, name) == pytest.approx(figure), (fix, name)


WIDE = {"tensor": "(128,128):(4096,1)", "threads": "(32,4):(4,1)", "values": "(1,32)",
        "atom": "cp.async.128", "dtype": "int4"}  # fmt: skip


def test_elements_are_the_users_and_figures_of_bytes() -> None:
    report = analyze_copy(**WIDE, smem="(128,128):(128,1)")
    assert (report.dtype, report.tensor, report.tile) == ("int4", "(128,128):(4096,1)", (32, 128))
    assert report.packing == (2, 1) and report.to_dict()["packing"] == [2, 1]
    assert "one copy covers (32,128), 2 elements share 1 byte, base" in str(report)
    bytewise = analyze_copy(
        tensor="(128,64):(2048,1)", threads="(32,4):(4,1)", values="(1,16)", atom="cp.async.128",
        dtype="uint8", smem="(128,64):(64,1)",
    )  # fmt: skip
    assert [row.launch for row in report.rows] == [row.launch for row in bytewise.rows]
    assert bytewise.packing is None and "share" not in str(bytewise)
    assert json.loads(json.dumps(report.to_dict()))["dtype"] == "int4"


@pytest.mark.parametrize(
    ("tensor", "alignment"),
    [
        ("gmem_ptr[4b](0x7f5a8c000010) o (_128,_128):(4096,_1)", 16),
        ("gmem_subptr[4b](0x7f5a8c000010.0) o (_128,_128):(4096,_1)", 16),
        ("gmem_subptr[4b](0x7f5a8c000000.8) o (_128,_128):(4096,_1)", 1),
        ("raw_ptr(0x7f5a8c000020: i4, gmem, align<2>) o (128,128):(4096,1)", 32),
        ("tensor<ptr<f4E2M1FN, gmem, align<64>> o (128,128):(4096,1)>", 64),
    ],
)
def test_printed_pointers(tensor: str, alignment: int) -> None:
    report = analyze_copy(**WIDE | {"tensor": tensor})
    assert (report.base_alignment, report.tensor) == (alignment, "(128,128):(4096,1)")


def test_a_swizzle_of_a_pointer_acts_on_bytes() -> None:
    question = {"threads": "(8,4):(4,1)", "values": "(1,32)", "atom": "ld.shared.128"}
    rows = [
        analyze_copy(tensor=tensor, dtype=dtype, **question | {"values": values}).rows
        for tensor, dtype, values in (
            ("Sw<2,4,3> o smem_ptr[4b](unset) o (8,128):(128,1)", "uint4", "(1,32)"),
            ("Sw<2,5,3> o 0 o (8,128):(128,1)", "uint4", "(1,32)"),
            ("Sw<2,4,3> o smem_ptr[8b](unset) o (8,64):(64,1)", "uint8", "(1,16)"),
        )
    ]
    assert rows[0] == rows[1] and rows[0][0].launch == rows[2][0].launch


def test_the_other_ways_to_say_who_holds_what() -> None:
    plain = analyze_copy(**WIDE)
    held = WIDE | {"threads": None, "values": None, "tile": (32, 128)}
    assert analyze_copy(**held, tv="((4,32),32):((1024,1),32)").rows == plain.rows
    transposed = analyze_copy(**WIDE | {"tensor": "(128,128):(1,4096)", "threads": "(4,32):(1,4)",
                                    "values": "(32,1)"})  # fmt: skip
    columns = held | {"tensor": "(128,128):(1,4096)", "tile": (128, 32)}
    assert analyze_copy(**columns, tv="((4,32),32):((32,128),1)").rows == transposed.rows
    assert plain.rows[0].launch == transposed.rows[0].launch
    # The default is one vector along the mode in which elements share bytes.
    assert analyze_copy(**WIDE | {"values": None}).rows == plain.rows
    # A matrix's edge, a run of bytes, a box.
    whole = analyze_copy(**WIDE, extents=(1000, 4000))
    assert whole.extents == (1000, 4000) and whole.rows[0].launch.bytes == 1000 * 2000
    bulk = {"tensor": "(128,128):(128,1)", "dtype": "e2m1", "tile": (1, 128)}
    assert analyze_copy(**bulk, atom="cp.async.bulk").rows[0].launch.bytes == 128 * 64
    box = analyze_copy(tensor="(1024,1024):(1024,1)", atom="tma", tile="64x256", dtype="e2m1",
                       smem="Sw<3,5,3> o 0 o (64,256):(256,1)")  # fmt: skip
    assert box.tile == (64, 256) and box.packing == (2, 1) and box.conflict_free
    assert box.rows[0].launch.bytes == 1024 * 512 and not box.findings
    short = analyze_copy(tensor="(1024,1024):(1024,1)", atom="tma", tile="64x16", dtype="e2m1")
    assert short.findings[0] == (
        "tensor as bytes: a tensor map requires rows of a box that are multiples of 16 bytes, and "
        "those of (64, 8) are 8."
    )


def test_matrix_instructions_of_elements_of_4_bits() -> None:
    (row,) = analyze_copy(tensor="(8,256):(256,1)", atom="ldmatrix.x4", dtype="int4").rows
    assert (row.requests, row.launch.wavefronts, row.ideal_wavefronts) == (2, 64, 4)
    free = analyze_copy(tensor="Sw<3,5,3> o 0 o (8,256):(256,1)", atom="ldmatrix.x4", dtype="int4")
    assert free.conflict_free
    question = {"tensor": "(16,64):(64,1)", "atom": "ldmatrix.x4", "dtype": "int4"}
    report = analyze_copy(**question)
    assert report.fixes[0][0].change["tensor"] == "Sw<1,5,3> o 0 o (16,64):(64,1)"
    assert len({fix.what for fix in report.fixes[0]}) == len(report.fixes[0])
    repeats(question, report)
    reader = "ld.shared.32 threads (8,4):(4,1) values (1,8)"
    stored = WIDE | {"smem": "(128,128):(128,1)"}
    report = analyze_copy(**stored, reader=reader)
    alone = analyze_copy(tensor=stored["smem"], atom="ld.shared.32", threads="(8,4):(4,1)",
                         values="(1,8)", dtype="int4")  # fmt: skip
    # Rows of 64 bytes: every second one begins at the same bank.
    assert [row.verdict for row in report.rows[1:]] == ["conflict-free", "4-way conflict"]
    assert report.rows[2].launch == alone.rows[0].launch
    repeats(stored | {"reader": reader}, report)


SHORT = WIDE | {"tensor": "(128,32):(32,1)", "values": "(1,8):(0,1)", "atom": "ld.global"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tensor": "(128,33):(34,1)"}, OptionError, "tensor (128,33):(34,1) begins or ends within "
         "a byte at (0,32): 2 elements of int4 share 1 byte; expected each 2 side by side along"),
        ({"tensor": "(128,32):(33,1)"}, OptionError, "within a byte at (1,0)"),
        ({"tensor": "(128,32):(66,2)"}, OptionError, "within a byte at (0,0)"),
        ({"tensor": "(128,32):(34,1)", "dtype": "e3m2"}, OptionError,
         "within a byte at (1,0): 4 elements of e3m2 share 3 bytes; expected each 4 side by side"),
        ({"tensor": "Sw<2,0,3> o 0 o (128,32):(32,1)"}, OptionError, "within a byte at (0,0)"),
        ({"values": "(1,1)"}, OptionError, "values (1,1):(1,1) begins or ends within a byte"),
        ({"values": "(2,8):(1,2)"}, OptionError, "values (2,8):(1,2) begins or ends within a byte"),
        ({"values": "(8,1):(1,0)"}, OptionError, "side by side along mode 1"),
        ({"smem": "(128,32):(1,128)", "atom": "cp.async"}, OptionError,
         "smem (128,32):(1,128) begins or ends within a byte"),
        ({"tensor": "(128,40):(40,1)"}, OptionError,
         "tensor as bytes (128,20):(20,1) has 20 elements in mode 1"),
        ({"tensor": "(128,32):(4096,1)", "extents": (1000, 4001)}, OptionError,
         "extents=(1000,4001) ends within a byte: 2 elements of int4 share 1 byte; expected a mul"),
        ({"tensor": "(1,32):(4095,1)", "threads": "(1,4):(4,1)", "extents": (1000, 4000)},
         OptionError, "tensor (1,32):(4095,1) begins or ends within a byte at (1,0)"),
        ({"threads": None, "values": None, "tile": (4, 8), "tv": "(4,8):(1,4)",
          "tensor": "(128,32):(1,128)"}, OptionError,
         "tv (4,8):(1,4) begins or ends within a byte at (0,0)"),
        ({"tensor": "gmem_subptr[4b](0x7f00.4) o (128,32):(32,1)"}, NotationError,
         "expected a pointer that is not amid a byte"),
        ({"tensor": "Sw<2,4,3> o smem_ptr[6b](unset) o (128,32):(32,1)", "dtype": "e3m2"},
         NotationError, "a swizzle of bytes that leaves elements of 6 bits"),
        ({"tensor": "gmem_ptr[8b](0x7f00) o (128,32):(32,1)"}, OptionError,
         "elements of 8 bits, and dtype has 4"),
        ({"atom": "red.global"}, OptionError, "16 bits or more; int4 has 4"),
        ({"atom": "ldmatrix.x4", "dtype": "e3m2"}, OptionError, "32 bits of a matrix; e3m2 has 6"),
        ({"atom": "ldmatrix.m8n16.x4.b4x16_p64"}, OptionError,
         "unpacks padded elements, 16 of them in 16 bytes; expected a tile of"),
        ({"dtype": "e3m2", "values": None}, OptionError,
         "4 elements of e3m2 share 3 bytes; expected values of a thread, such as (1,64)"),
        ({"dtype": "e3m2", "atom": "cp.async", "smem": "(128,32):(32,1)", "reader": "ldmatrix.x4"},
         OptionError, "gives a thread 32 bits of a matrix; e3m2 has 6"),
        ({"atom": "tma", "dtype": "e3m2", "threads": None, "values": None, "tile": (8, 32)},
         OptionError, "stores each e3m2 in a separate byte"),
    ],
)  # fmt: skip
def test_refusals(change: dict[str, Any], error: type[GemmError], message: str) -> None:
    with pytest.raises(error) as caught:
        analyze_copy(**SHORT | change)
    assert message in str(caught.value) and "\n" not in str(caught.value)
