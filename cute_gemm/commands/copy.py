"""``cute-gemm copy``: a tiled copy of one's own."""

from __future__ import annotations

import argparse

from cute_gemm._text import named
from cute_gemm.commands.arguments import add
from cute_gemm.commands.output import check_html, show_report

#: Those of ``analyze_copy``, under its names: what it is, and whether it must be given.
_LAYOUTS = (
    ("tensor", "layout of the tile that is copied, in elements", True),
    (
        "matrix",
        "of a tensor of coordinates, (128,64):(1@0,1@1): the layout that they index, of a TMA "
        "tensor with the mode of unit stride first",
        False,
    ),
    ("threads", "(m, n) -> thread, as make_tiled_copy takes it", False),
    ("values", "(m, n) -> value (default: one vector along the contiguous mode)", False),
    ("smem", "layout of the same tile in shared memory, for a copy into it", False),
    (
        "tile",
        "with --tv: extents of the tile that one copy covers; of tma and cp.async.bulk: "
        "what one instruction moves, 128x64",
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
        help="cp.async.128, ld.global, red.global, ldmatrix.x4.trans, cp.async.bulk, tma, ..., "
        "PTX's or CuTe's name",
    )
    parser.add_argument(
        "--dtype", default="float16", help="of an element: float16 (default), int4, e3m2, ..."
    )
    parser.add_argument("--space", choices=("global", "shared"), help="where the tensor is")
    parser.add_argument("--direction", choices=("load", "store"), help="of a plain copy")
    parser.add_argument(
        "--base-alignment",
        type=int,
        metavar="BYTES",
        help="of its address (default: what the tensor's text says, else 256)",
    )
    for name, what in (("reader", "loads from"), ("writer", "stores to")):
        parser.add_argument(
            f"--{name}",
            metavar="ATOM",
            help=f"what {what} the same shared memory: ldmatrix.x4, 'ld.shared threads 32:1'",
        )
    parser.add_argument(
        "--let", default="", metavar="?=N", help="what ? in a layout stands for; N,N,... in order"
    )
    parser.add_argument(
        "--extents",
        metavar="MxN",
        help="of the matrix of which the tensor is one tile: all are copied, the rest is off",
    )
    parser.add_argument("--arch", help="where it runs: an atom that it lacks is refused")
    add(parser, "--html")


def command(arguments: argparse.Namespace) -> int:
    """Print the report; return 0."""
    from cute_gemm.analysis.copy.report import analyze_copy

    check_html(arguments)
    names = (*(name for name, *_ in _LAYOUTS), "atom", "dtype", "space", "direction")
    others = ("base_alignment", "reader", "writer", "let", "extents", "arch")
    return show_report(arguments, analyze_copy(**named(arguments, *names, *others)))
