"""Test undefined bits: an undefined result bit is one that changes with undefined operand bits."""

import itertools
import re
import zlib

import numpy as np
import pytest
from ptx_text import launch, text

from cute_gemm.errors import FaultError
from cute_gemm.ptx.code import STORED, Code
from cute_gemm.ptx.follow import unsigned
from cute_gemm.ptx.machine import Machine
from cute_gemm.ptx.memory import GlobalMemory
from cute_gemm.ptx.parser import parse
from cute_gemm.ptx.program import Program

#: Undefined bits of an instruction's operands together.
BITS = 5
#: Instructions that are tracked exactly.
EXACT = [
    "mov.b32 %r0, %r1", "mov.b64 %d0, {%r1, %r2}", "mov.b32 {%h0, _}, %r1",
    "and.b32 %r0, %r1, %r2", "or.b32 %r0, %r1, %r2", "xor.b32 %r0, %r1, %r2", "not.b32 %r0, %r1",
    "and.b16 %h0, %h1, %h2", "and.b32 %r0, %r1, 0xff00", "and.pred %p0, %p1, %p2",
    "xor.pred %p0, %p1, %p2", "not.pred %p0, %p1",
    "lop3.b32 %r0, %r1, %r2, %r3, 0xca", "lop3.b32 %r0, %r1, %r2, %r3, 0x96",
    "lop3.b32 %r0, %r1, %r2, %r3, 0xe8", "lop3.b32 %r0, %r1, %r2, %r3, 0xff",
    "shl.b32 %r0, %r1, 5", "shr.u32 %r0, %r1, 5", "shr.s32 %r0, %r1, 5", "shl.b64 %d0, %d1, 40",
    "shl.b32 %r0, %r1, %n1", "shr.s32 %r0, %r1, %n1", "shr.u64 %d0, %d1, %n1",
    "shf.l.wrap.b32 %r0, %r1, %r2, %n1", "shf.r.clamp.b32 %r0, %r1, %r2, %n1",
    "bfe.u32 %r0, %r1, %n1, %n2", "bfe.s32 %r0, %r1, %n1, %n2", "bfi.b32 %r0, %r1, %r2, 4, 9",
    "prmt.b32 %r0, %r1, %r2, 0x7af4", "prmt.b32 %r0, %r1, %r2, %n1",
    "selp.b32 %r0, %r1, %r2, %p1", "selp.f32 %f0, %f1, %f2, %p1",
    "setp.eq.s32 %p0, %r1, %r2", "setp.ne.b32 %p0, %r1, %r2", "setp.lt.u32 %p0, %r1, %r2",
    "setp.ge.u32 %p0, %r1, %r2", "setp.gt.s32 %p0, %r1, %r2", "setp.le.s64 %p0, %d1, %d2",
    "setp.lt.and.s32 %p0, %r1, %r2, %p1", "setp.ne.or.u32 %p0, %r1, %r2, %p1",
    "cvt.u32.u16 %r0, %h1", "cvt.s64.s32 %d0, %r1", "cvt.s32.s8 %r0, %r1", "cvt.u16.u32 %h0, %r1",
    "neg.f32 %f0, %f1", "abs.f32 %f0, %f1", "copysign.f32 %f0, %f1, %f2",
]  # fmt: skip
#: Instructions for which more bits may be marked undefined than are.
SAFE = [
    "add.s32 %r0, %r1, %r2", "sub.s32 %r0, %r1, %r2", "add.s64 %d0, %d1, %d2",
    "sub.u16 %h0, %h1, %h2", "neg.s32 %r0, %r1", "abs.s32 %r0, %r1", "add.s32 %r0, %r1, 48",
    "min.s32 %r0, %r1, %r2", "max.u32 %r0, %r1, %r2", "max.s64 %d0, %d1, %d2",
    "mul.lo.s32 %r0, %r1, %r2", "mul.wide.s32 %d0, %r1, %r2", "mul.wide.u16 %r0, %h1, %h2",
    "mul.hi.u32 %r0, %r1, %r2", "mul.hi.s32 %r0, %r1, %r2", "mad.lo.s32 %r0, %r1, %r2, %r3",
    "mad.wide.u32 %d0, %r1, %r2, %d3", "mul.lo.u32 %r0, %r1, 96",
    "popc.b32 %r0, %r1", "clz.b32 %r0, %r1", "clz.b64 %r0, %d1",
    "dp4a.s32.s32 %r0, %r1, %r2, %r3", "dp4a.u32.u32 %r0, %r1, %r2, %r3",
    "dp2a.lo.s32.u32 %r0, %r1, %r2, %r3", "dp2a.hi.u32.s32 %r0, %r1, %r2, %r3",
    "add.f32 %f0, %f1, %f2", "mul.f32 %f0, %f1, %f2", "fma.rn.f32 %f0, %f1, %f2, %f3",
    "min.f32 %f0, %f1, %f2", "setp.lt.f32 %p0, %f1, %f2", "setp.gt.or.f32 %p0, %f1, %f2, %p1",
    "cvt.rn.f32.s32 %f0, %r1", "cvt.f32.f16 %f0, %h1", "cvt.rzi.s32.f32 %r0, %f1",
    "cvt.rn.f16x2.f32 %r0, %f1, %f2", "cvt.rn.bf16x2.f32 %r0, %f1, %f2",
    "cvt.rn.satfinite.e4m3x2.f32 %h0, %f1, %f2", "cvt.rn.f16x2.e4m3x2 %r0, %h1",
    "cvt.rn.satfinite.e5m2x2.f16x2 %h0, %r1",
    "div.u32 %r0, %r1, %r2", "rem.s32 %r0, %r1, %r2",
]  # fmt: skip
KINDS = {"p": "pred", "h": "b16", "r": "b32", "d": "b64", "f": "f32", "n": "b32"}


class One:
    """One instruction with given operand values and undefined bits."""

    def __init__(self, statement: str) -> None:
        names = sorted(set(re.findall(r"%([phrdfn])(\d)", statement)))
        declared = "".join(f".reg .{KINDS[kind]} %{kind}{number};\n" for kind, number in names)
        kernel = parse(f".entry k() {{\n{declared}{statement};\nret;\n}}")
        self.machine = Machine((1, 1, 1), (1, 1, 1), GlobalMemory({}), None, None, len(names))
        self.machine.ctas = 1
        program = Program(Code(kernel, self.machine, b""), True)
        (self.piece,) = program.pieces
        (to,) = [x for x in kernel.registers if x.name.endswith("0")]
        self.to = to.slot
        self.sources = [x for x in kernel.registers if not x.name.endswith("0")]

    def __call__(self, values: list[np.ndarray], lost: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        for register, value, bits in zip(self.sources, values, lost, strict=True):
            stored = STORED[register.type]
            self.machine.values[register.slot] = value.view(stored)[None]
            self.machine.undefined[register.slot] = bits[None] if bits.any() else None
        with np.errstate(all="ignore"):
            for step in self.piece.plain:
                step()
        made = self.machine.values[self.to]
        made = made.view(unsigned(made.dtype))
        bits = self.machine.undefined[self.to]
        count = len(values[0])
        bits = np.zeros_like(made) if bits is None else bits
        return np.broadcast_to(made, (1, count))[0], np.broadcast_to(bits, (1, count))[0]


@pytest.mark.parametrize("statement", EXACT + SAFE)
def test_undefined_are_the_bits_that_others_change(statement: str) -> None:
    """Try all values of some undefined bits, and compare the changed with the undefined bits."""
    one, count = One(statement), 1 << BITS
    random = np.random.default_rng(zlib.crc32(statement.encode()))
    more = changed_at_all = 0
    for turn in range(60):
        values, lost, widths = [], [], []
        for register in one.sources:
            width = 1 if register.type == "pred" else 8 * np.dtype(STORED[register.type]).itemsize
            widths.append(width)
            value = int.from_bytes(random.bytes(8), "little") >> int(random.integers(0, width))
            if register.name.startswith("%n") and turn % 2:
                value %= 32
            value = values[0] if turn % 3 == 0 and values else value  # so that some are equal
            values.append(value % (1 << width))
            lost.append(0)
        # Positions of the bits: anywhere, or adjacent in one operand.
        for _ in range(BITS):
            which = int(random.integers(0, len(values)))
            lost[which] |= 1 << int(random.integers(0, widths[which]))
        if turn % 4 == 0:
            which = turn // 4 % len(values)
            lost = [0] * len(values)
            lost[which] = (1 << min(BITS, widths[which])) - 1
        places = [(i, bit) for i, x in enumerate(lost) for bit in range(64) if x >> bit & 1]
        choices = list(itertools.product((0, 1), repeat=len(places)))
        columns, marks = [], []
        for i, register in enumerate(one.sources):
            kind = unsigned(STORED[register.type])
            column = [
                values[i] & ~lost[i]
                | sum(on << bit for (j, bit), on in zip(places, choice, strict=True) if j == i)
                for choice in choices
            ]
            columns.append(np.array(column, np.uint64).astype(kind))
            marks.append(np.full(len(choices), lost[i], np.uint64).astype(kind))
        made, bits = one(columns, marks)
        assert len(choices) <= count and len(made) == len(choices)
        changed = np.bitwise_or.reduce(made ^ made[0])
        assert (changed & ~bits == 0).all(), (statement, values, lost, hex(changed), bits)
        changed_at_all += bool(changed)
        # Shift counts must have no undefined bits.
        far = [x for x, register in zip(lost, one.sources, strict=True) if register.name[1] == "n"]
        more += 0 if any(far) else int((bits != changed).sum())
    assert changed_at_all or statement[-4:] == "0xff"
    if statement in EXACT:
        assert more == 0


@pytest.mark.parametrize("statement", SAFE)
def test_what_is_defined_stays_defined(statement: str) -> None:
    one = One(statement)
    values = [
        np.full(1, 3, np.uint64).astype(unsigned(STORED[register.type])) for register in one.sources
    ]
    _, bits = one(values, [np.zeros_like(value) for value in values])
    assert not bits.any()


@pytest.mark.parametrize(
    ("statement", "values", "lost", "expected"),
    [
        ("add.s32 %r0, %r1, %r2", (0x100, 0x20), (0xF, 0), 0xF),
        ("sub.s32 %r0, %r1, %r2", (0x100, 0), (0xF0, 0), 0xF0),
        ("mul.lo.s32 %r0, %r1, %r2", (5, 0), (0xFF, 0), 0),
        ("mul.lo.s32 %r0, %r1, %r2", (0, 16), (0xFF00, 0), 0xFFFFF000),
        ("max.u32 %r0, %r1, %r2", (0, 0x1000), (0xFF, 0), 0),
        ("min.s32 %r0, %r1, %r2", (0, -5 & 0xFFFFFFFF), (0xFF, 0), 0),
        ("clz.b32 %r0, %r1", (0x800000, 0), (0xFF, 0), 0),
        ("popc.b32 %r0, %r1", (0xFFFF0000, 0), (0x1, 0), 1),
        ("dp4a.s32.s32 %r0, %r1, %r2, %r3", (0x01020304, 0x00010101, 0), (0xFF000000, 0, 0), 0),
        ("cvt.rn.f16x2.f32 %r0, %f1, %f2", (0, 0), (0, 1), 0xFFFF),
        ("cvt.rn.f16x2.e4m3x2 %r0, %h1", (0, 0), (0x0100, 0), 0xFFFF0000),
        ("cvt.rn.satfinite.e4m3x2.f32 %h0, %f1, %f2", (0, 0), (1, 0), 0xFF00),
    ],
)
def test_what_cannot_change_is_defined(statement, values, lost, expected) -> None:
    one = One(statement)
    kinds = [unsigned(STORED[register.type]) for register in one.sources]
    columns, marks = (
        [np.array([x], np.uint64).astype(kind) for x, kind in zip(each, kinds, strict=False)]
        for each in (values, lost)
    )
    assert int(one(columns, marks)[1][0]) == expected


#: The upper half of %r10 was never written, and no bit of %r11.
SOME = """
    st.shared.u16 [%r8], 3;
    ld.shared.u32 %r10, [%r8];
    ld.shared.u32 %r11, [%r8 + 2048];
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        # A selector in a register uses only defined bytes.
        ("and.b32 %r12, %r2, 1; prmt.b32 %r13, %r10, 0, 0x4410; prmt.b32 %r13, %r13, %r10, %r12;"
         "and.b32 %r13, %r13, 255;", [3, 0]),
        ("setp.eq.s32 %p1, %r2, 0; or.pred %p9, %p9, %p1; vote.sync.ballot.b32 %r13, %p9, -1;"
         "and.b32 %r13, %r13, 1;", [1, 1]),
        ("setp.eq.s32 %p1, %r2, 0; and.pred %p1, %p1, %p9; mov.u32 %r13, 7;"
         "setp.ne.s32 %p9, %r1, %r1; @%p9 mov.u32 %r13, %r11;", [7, 7]),
        ("setp.lt.s32 %p9, %r11, 0; mov.u32 %r13, 7; @%p9 mov.u32 %r13, 7; and.b32 %r13, %r13, 0;",
         [0, 0]),
        ("redux.sync.max.u32 %r13, %r14, -1; and.b32 %r13, %r13, 0;", [0, 0]),
        ("shfl.sync.down.b32 %r13|%p9, %r10, 1, 31, -1; selp.b32 %r13, 1, 2, %p9;", [1, 1]),
    ],
)  # fmt: skip
def test_instructions_of_a_kernel(code: str, expected: list[int]) -> None:
    whole = text(SOME + code + "st.global.u32 [%d5], %r13;")
    out = launch(whole, np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    assert out[:2].tolist() == expected


def test_what_an_undefined_predicate_sets_is_undefined() -> None:
    code = "setp.lt.s32 %p9, %r11, 0; mov.u32 %r13, 7; @%p9 mov.u32 %r13, 8; {};"
    for last in ("st.global.u32 [%d5], %r13", "@%p9 st.global.u32 [%d5], 1"):
        with pytest.raises(FaultError, match="no thread has set") as caught:
            launch(text(SOME + code.format(last)), np.zeros(32, np.uint32), np.zeros(32, np.uint32))
        assert caught.value.kind == "uninitialised"


@pytest.mark.parametrize("there", [False, True])
def test_a_zero_times_what_is_undefined_is_zero_of_integers(there: bool) -> None:
    """Test that 0 times an undefined integer is 0. For floats it may be NaN."""
    zero = "" if there else "mov.u32 %r20, 0;"
    of = {"s8": ("m16n8k16", "s32", "r"), "f16": ("m16n8k8", "f32", "f")}
    for kind, (shape, total, x) in of.items():
        code = f"""
            mov.b32 %r20, %r11; {zero}
            mov.b32 %r21, 0;
            mov.b32 %{x}30, 0; mov.b32 %{x}31, 0; mov.b32 %{x}32, 0; mov.b32 %{x}33, 0;
            mma.sync.aligned.{shape}.row.col.{total}.{kind}.{kind}.{total}
                {{%{x}30, %{x}31, %{x}32, %{x}33}}, {{%r21, %r21}}, {{%r11}},
                {{%{x}30, %{x}31, %{x}32, %{x}33}};
            st.global.b32 [%d5], %{x}30;"""
        given = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
        if kind == "s8":
            assert not launch(text(SOME + code), *given).any()
        else:
            with pytest.raises(FaultError, match="no thread has set"):
                launch(text(SOME + code), *given)
