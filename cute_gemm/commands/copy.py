"""``cute-gemm copy``: the report of a tiled copy that the user describes."""

from __future__ import annotations

import argparse

from cute_gemm._text import named
from cute_gemm.commands.arguments import add
from cute_gemm.commands.output import check_html, show_report

#: Layouts that ``analyze_copy`` takes, by its names: help, and whether it is required.
_LAYOUTS = (
    ("tensor", "layout of the tile to copy, in elements", True),
    (
        "matrix",
        "for a tensor of coordinates, (128,64):(1@0,1@1): the layout of the matrix that they "
        "index; for TMA with the mode of unit stride first",
        False,
    ),
    ("threads", "(m, n) -> thread, as make_tiled_copy takes it", False),
    ("values", "(m, n) -> value (default: one vector along the contiguous mode)", False),
    ("smem", "layout of the same tile in shared memory, for a copy into it", False),
    (
        "tile",
        "with --tv: extents of the tile that one copy covers; for tma and cp.async.bulk: extents "
        "that one instruction moves, 128x64",
        False,
    ),
    ("tv", "instead of --threads and --values: (thread, value) -> coordinate", False),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm copy`` takes."""
    parser.epilog = (
        "Layouts in CuTe's notation, as C++ CuTe and CuTe DSL print them: --tensor "
        '"(128,32):(4096,1)" --threads "(16,8):(1,16)" --values "(8,1):(1,8)" --atom cp.async.128.'
    )
    for name, what, required in _LAYOUTS:
        parser.add_argument(f"--{name}", metavar="LAYOUT", required=required, help=what)
    parser.add_argument(
        "--atom",
        required=True,
        help="instruction, by the name of PTX or of CuTe: cp.async.128, ld.global, red.global, "
        "ldmatrix.x4.trans, cp.async.bulk, tma, ...",
    )
    parser.add_argument(
        "--dtype", default="float16", help="type of an element: float16 (default), int4, e3m2, ..."
    )
    parser.add_argument(
        "--space", choices=("global", "shared"), help="memory that the tensor is in"
    )
    parser.add_argument(
        "--direction", choices=("load", "store"), help="direction of a plain load or store"
    )
    parser.add_argument(
        "--base-alignment",
        type=int,
        metavar="BYTES",
        help="alignment of the tensor's address (default: that in the tensor's text, else 256)",
    )
    for name, what in (("reader", "loads from"), ("writer", "stores to")):
        parser.add_argument(
            f"--{name}",
            metavar="ATOM",
            help=f"what {what} the same shared memory: ldmatrix.x4, 'ld.shared threads 32:1'",
        )
    parser.add_argument(
        "--let",
        default="",
        metavar="?=N",
        help="value of each ? in the layouts, in order: N or N,N,...",
    )
    parser.add_argument(
        "--extents",
        metavar="MxN",
        help="extents of the matrix that the tensor is a tile of: all of its tiles are copied, and "
        "lanes outside of it are inactive",
    )
    parser.add_argument("--arch", help="architecture that must have the atom")
    add(parser, "--html")


def command(arguments: argparse.Namespace) -> int:
    """Print the report; return 0."""
    from cute_gemm.analysis.copy.report import analyze_copy

    check_html(arguments)
    names = (*(name for name, *_ in _LAYOUTS), "atom", "dtype", "space", "direction")
    others = ("base_alignment", "reader", "writer", "let", "extents", "arch")
    return show_report(arguments, analyze_copy(**named(arguments, *names, *others)))
