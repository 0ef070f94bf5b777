"""``cute-gemm copy``: the report of a tiled copy given by its layouts."""

from __future__ import annotations

import argparse
from inspect import signature

from cute_gemm._text import named
from cute_gemm.commands.arguments import add, add_options
from cute_gemm.commands.output import OK, check_html, show_report

#: Options that are text, as they are typed.
_LAYOUTS = {
    "--matrix LAYOUT": "for a tensor of coordinates, (128,64):(1@0,1@1): the layout of the matrix "
    "that they index; for TMA with the mode of unit stride first",
    "--threads LAYOUT": "(m, n) -> thread, as make_tiled_copy takes it",
    "--values LAYOUT": "(m, n) -> value (default: one vector along the contiguous mode)",
    "--smem LAYOUT": "layout of the same tile in shared memory, for a copy into it",
    "--tile LAYOUT": "with --tv: extents of the tile that one copy covers; for tma and "
    "cp.async.bulk: extents that one instruction moves, 128x64",
    "--tv LAYOUT": "instead of --threads and --values: (thread, value) -> coordinate",
}
_ATOM = (
    "instruction, by the name of PTX or of CuTe: cp.async.128, ld.global, red.global, "
    "ldmatrix.x4.trans, cp.async.bulk, tma, ..."
)
_ALIGNMENT = "alignment of the tensor's address (default: that in the tensor's text, else 256)"
_PARTNER = "the same shared memory: ldmatrix.x4, 'ld.shared threads 32:1'"
_PARTNERS = {
    "--reader ATOM": f"atom that loads from {_PARTNER}",
    "--writer ATOM": f"atom that stores to {_PARTNER}",
}  # fmt: skip
_OTHERS = {
    "--extents MxN": "extents of the matrix of which the tensor is a tile: all its tiles are "
    "copied, and lanes outside it are inactive",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm copy``."""
    parser.epilog = (
        "Layouts in CuTe's notation, as C++ CuTe and CuTe DSL print them: --tensor "
        '"(128,32):(4096,1)" --threads "(16,8):(1,16)" --values "(8,1):(1,8)" --atom cp.async.128.'
    )
    tensor = {"--tensor LAYOUT": "layout of the tile to copy, in elements"}
    add_options(parser, tensor, required=True)
    add_options(parser, _LAYOUTS)
    add_options(parser, {"--atom ATOM": _ATOM}, required=True)
    add(parser, "--dtype", help=": of the tensor, float16 (default), int4, e3m2, ...")
    add_options(parser, {"--space": "memory of the tensor"}, choices=("global", "shared"))
    direction = {"--direction": "direction of a plain load or store"}
    add_options(parser, direction, choices=("load", "store"))
    add_options(parser, {"--base-alignment BYTES": _ALIGNMENT}, type=int)
    add_options(parser, _PARTNERS)
    text = "value of each ? in the layouts, in order: N or N,N,..."
    add_options(parser, {"--let ?=N": text}, default="")
    add_options(parser, _OTHERS)
    add(parser, "--arch", help=": it must have the atom, sm_80, sm_90a, ...")
    add(parser, "--html")


def command(arguments: argparse.Namespace) -> int:
    """Print the report; return 0."""
    from cute_gemm.copies.report import analyze_copy

    check_html(arguments)
    names = signature(analyze_copy).parameters
    show_report(arguments, analyze_copy(**named(arguments, *names)))
    return OK
