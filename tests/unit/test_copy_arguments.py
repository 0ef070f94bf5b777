"""Test invalid arguments of ``analyze_copy``: one sentence each, with the right class of error."""

from typing import Any

import pytest

from cute_gemm.copies.report import analyze_copy
from cute_gemm.errors import DTypeError, GemmError, NotationError, OptionError

GOOD = {
    "tensor": "(128,32):(32,1)",
    "threads": "(32,4):(4,1)",
    "values": "(1,8):(0,1)",
    "atom": "cp.async",
}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tensor": "(128,32):(32"}, NotationError, "does not parse at column 13: expected ')'"),
        ({"threads": "(?,4):(4,1)"}, NotationError, "column 2: expected an integer: a dynamic '?'"),
        ({"tensor": "(8,8):(1@0,1@1)"}, NotationError, "a basis stride such as 1@0"),
        ({"tensor": "128:1"}, OptionError, "has 1 mode; expected two for a tile"),
        ({"tensor": "(8,8,3,2):(8,1,64,0)"}, OptionError, "expected two for a tile, or three"),
        ({"tensor": "((6,4),8):((1,8),32)", "threads": "(4,8):(1,4)", "values": "(1,1)"},
         OptionError, "has mode 0, (6,4):(1,8), which 4:1 of the copy does not divide"),
        ({"smem": "((24,2),(16,2)):((1,1024),(24,512))", "tensor": "(48,32):(32,1)",
          "threads": "(16,4):(4,1)"}, OptionError, "smem ((24,2),(16,2)):((1,1024),(24,512)) has "
         "mode 0, (24,2):(1,1024), which 16:1 of the copy does not divide"),
        ({"tensor": "gmem_ptr[16b](0x7f01) o (128,32):(32,1)"}, OptionError,
         "tensor is printed with a pointer aligned to 1 bytes; expected at least the 2"),
        ({"let": "?=x"}, OptionError, "let='?=x'; expected the values of '?'"),
        ({"reader": "ldmatrix.x4"}, OptionError, "needs a tile in shared memory; expected smem"),
        ({"smem": "(128,32):(32,1)", "reader": "stmatrix.x4"}, OptionError,
         "reader='stmatrix.x4' is a store; expected a load"),
        ({"smem": "(128,32):(32,1)", "writer": "st.shared.32"}, OptionError,
         "expected an ldmatrix or stmatrix, or an atom with its threads"),
        ({"smem": "(128,32):(32,1)", "reader": "ld.shared.16 threads (96,1):(1,1)"}, OptionError,
         "does not divide the tile (128,32):(32,1)"),
        ({"tensor": "(0,8):(8,1)"}, OptionError, "has 0 elements; expected 1 to"),
        ({"tensor": "(65536,65536):(1,65536)"}, OptionError, "has 4,294,967,296 elements"),
        ({"tensor": "ptr[32b](0x1) o (128,32):(32,1)"}, OptionError,
         "elements of 32 bits, and dtype has 16; expected dtype='float32'"),
        ({"tensor": "gmem_ptr[4b](0x80) o (128,32):(32,1)"}, OptionError, "expected dtype='int4'"),
        ({"tensor": "(128,40):(40,1)"}, OptionError, "40 elements in mode 1, which the 32 that"),
        ({"tensor": "(128,32):(31,1)", "atom": "st.global"}, OptionError,
         "is not injective, and stored to: coordinates (0,31) and (1,0) are both at 31"),
        ({"smem": "(128,32):(0,1)"}, OptionError, "smem (128,32):(0,1) is not injective"),
        ({"smem": "(32,128):(128,1)"}, OptionError, "has extents (32,128); expected those of"),
        ({"smem": "(128,32):(32,1)", "atom": "ld.shared"}, OptionError, "a copy from global"),
        ({"threads": "(32,4):(1,4)"}, OptionError,
         "threads (32,4):(1,4) do not cover the tile: number 4 has more than one place"),
        ({"threads": "(32,4):(8,1)"}, OptionError, "do not cover the tile: (16,0) is number 128"),
        ({"values": "(1,8):(0,2)"}, OptionError, "do not cover the tile: (0,4) is number 8"),
        ({"threads": "(2,2,2):(1,2,4)"}, OptionError, "has 3 modes; expected 2 or 1"),
        ({"threads": "(64,32):(32,1)"}, OptionError, "2048 threads; a CTA has at most 1024"),
        ({"threads": None, "values": None}, OptionError, "threads is missing; expected a layout"),
        ({"threads": None}, OptionError, "come without threads; expected both"),
        ({"atom": "ldmatrix.x4", "threads": "(4,4):(4,1)"}, OptionError, "takes whole warps of 32"),
        ({"atom": "ldmatrix.x4", "values": None}, OptionError, "values are missing"),
        ({"atom": "ldmatrix.x8"}, OptionError, "atom 'ldmatrix.x8' is unknown; expected one like"),
        ({"atom": "cp.async.16"}, OptionError, "has a width of 16 bits; expected one of 32"),
        ({"atom": "UniversalCopy<Foo>"}, OptionError, "copies 'Foo'; expected a type such as"),
        ({"atom": "ld.global.8"}, OptionError, "moves 8 bits; an element of float16 has 16"),
        ({"space": "local"}, OptionError, "space='local' is unknown; expected one of"),
        ({"atom": "ld.global", "space": "shared"}, OptionError, "does not fit atom 'ld.global'"),
        ({"direction": "store"}, OptionError, "direction='store' does not fit atom 'cp.async'"),
        ({"base_alignment": 24}, OptionError, "base_alignment=24; expected a power of two"),
        ({"base_alignment": 1}, OptionError, "of at least the 2 of float16"),
        ({"dtype": "float17"}, DTypeError, "dtype 'float17' is not supported"),
        ({"tile": (128, 32)}, OptionError, "tile comes with tv"),
        ({"tv": "(32,8):(8,1)"}, OptionError, "tv comes with tile"),
        ({"tv": "(32,8):(8,1)", "tile": (8, 8), "threads": None, "values": None}, OptionError,
         "tv (32,8):(8,1) reaches coordinate 255; the tile (8,8) has 64"),
        ({"tv": "(32,8):(8,1)", "tile": "64x32", "threads": None, "values": None}, OptionError,
         "does not cover the tile (64,32): no thread has element (0,4)"),
        ({"tv": "(64,8):(0,1)", "tile": (8, 1), "threads": None, "values": None,
          "atom": "st.global"}, OptionError, "tv (64,8):(0,1) is not injective, and stored to"),
        ({"tensor": "(128,32):(99999999999999999999,1)"}, OptionError, "exceeds the range of"),
        ({"tensor": "Sw<70,1,99> o 0 o (128,32):(32,1)"}, OptionError, "exceeds the range of"),
        ({"threads": "(32,4):(99999999999999999999,1)"}, OptionError, "exceeds the range of"),
        ({"tensor": "(" * 5000}, NotationError, "at most 32 nested parentheses"),
        ({"tensor": None}, NotationError, "layout 'None' does not parse at column 1"),
        ({"atom": None}, OptionError, "atom 'None' is unknown"),
        ({"tv": "32:1", "tile": (8, 4), "threads": None, "values": None}, OptionError, "has 1 mo"),
        ({"tv": "(32,8):(8,1)", "tile": "64", "threads": None, "values": None}, OptionError,
         "tile='64'; expected two extents"),
    ],
)  # fmt: skip
def test_refusals(change: dict[str, Any], error: type[GemmError], message: str) -> None:
    with pytest.raises(error) as caught:
        analyze_copy(**GOOD | change)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_notation_error_has_its_column() -> None:
    with pytest.raises(NotationError) as caught:
        analyze_copy(**GOOD | {"values": "(1,8):(0;1)"})
    assert caught.value.column == 8
