"""Small PTX texts for tests of the interpreter, and a function that launches them."""

from typing import Any

import numpy as np

from cute_gemm.ptx import Buffer, run

_HEAD = """.version 9.0
.target sm_80
.address_size 64
{outside}
.visible .entry k(
    .param .u64 k_param_0, .param .u64 k_param_1, .param .u32 k_param_2
)
.maxntid 1024, 1, 1
{{
    .reg .pred %p<40>;
    .reg .b16 %h<40>;
    .reg .b32 %r<80>;
    .reg .b64 %d<40>;
    .reg .f32 %f<40>;
    .reg .f64 %g<40>;
    .shared .align 16 .b8 space[{space}];
    ld.param.u64 %d1, [k_param_0];
    ld.param.u64 %d2, [k_param_1];
    ld.param.u32 %r1, [k_param_2];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %ctaid.x;
    mad.lo.s32 %r5, %r4, %r3, %r2;
    mul.wide.s32 %d3, %r5, {step};
    add.s64 %d4, %d1, %d3;
    add.s64 %d5, %d2, %d3;
    shl.b32 %r6, %r2, 2;
    mov.u32 %r7, space;
    add.s32 %r8, %r7, %r6;
"""


def text(body: str, *, step: int = 4, space: int = 4096, outside: str = "") -> str:
    """Return a module with an entry ``k(in, out, number)``.

    ``%d4`` and ``%d5`` are the addresses of the thread's elements of in and out, ``step`` bytes
    each, ``%r1`` is the number, ``%r2`` the thread, ``%r4`` the CTA, ``%r8`` its 4 bytes of
    ``space``.
    """
    return _HEAD.format(outside=outside, step=step, space=space) + body + "\n    ret;\n}\n"


def launch(
    code: str, given: Any, out: Any, *, grid: int = 1, block: int | None = None, number: int = 0,
    **options: Any,
) -> np.ndarray:  # fmt: skip
    """Run the code with an input and an output array, and return the output."""
    given, out = np.array(given), np.array(out)
    count = out.size // grid if block is None else block
    arguments = [Buffer(given, "in"), Buffer(out, "out"), np.uint32(number)]
    launch.done = run(code, "k", (grid,), (count,), 0, arguments, **options)  # type: ignore[attr-defined]
    return out


def line_of(code: str, part: str) -> int:
    """Return the line, counted from 1, of a part of a text."""
    return code[: code.index(part)].count("\n") + 1
