"""Make the pictures of the documentation: ``python docs/make_pictures.py [REPORT.html]``.

With an argument, the report that docs/report.md shows is written there too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ladder_pictures import access, ladder

import cute_gemm as cg
from cute_gemm.analysis import pictures as draw
from cute_gemm.cute.atoms import cp_async
from cute_gemm.cute.copies import gmem_tiled_copy
from cute_gemm.cute.layout import Layout, column_major
from cute_gemm.cute.notation import parse


def main(report: Path | None) -> None:
    """Write every picture, and ``report`` if it is asked for."""
    sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "arch": "sm_80"}
    reference = cg.analyze("NN", **sizes, kernel="sm80_pipeline", copy="mn_major")
    auto = cg.analyze("NN", **sizes, kernel="sm80_pipeline")
    copy = gmem_tiled_copy(cp_async(128), 16, column_major(16, 8), Layout((8, 1), (1, 0)))
    assert reference.predicted is not None
    pictures = {
        "roofline.svg": draw.roofline(reference.performance, reference.predicted.seconds),
        "price_terms.svg": draw.price_terms(reference.predicted),
        "request_coalesced.svg": access(auto, "B", "cp.async"),
        "request_strided.svg": access(reference, "B", "ld.global"),
        "banks_conflict.svg": access(reference, "A", "ldmatrix"),
        "banks_free.svg": access(auto, "A", "ldmatrix"),
        "tv_layout.svg": draw.tv_layout(
            copy.partition, copy.tile, "tiled copy: threads (16,8):(1,16), values (8,1):(1,0)"
        ),
        "shared_layout.svg": draw.shared_layout(
            parse("Sw<3,3,3> o 0 o (8,64):(64,1)"), (8, 64), 16, "a swizzled K-major atom"
        ),
    }
    pictures |= {f"ladder_{name}.svg": picture for name, picture in ladder()}
    folder = Path(__file__).parent / "pictures"
    folder.mkdir(exist_ok=True)
    for name, text in pictures.items():
        (folder / name).write_text(text, encoding="utf-8")
    if report is not None:
        report.write_text(reference.to_html(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
