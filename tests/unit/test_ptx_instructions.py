"""Test instructions against NumPy, Python's integers, and the layouts of the PTX ISA by lane."""

from fractions import Fraction

import numpy as np
import pytest
from ptx_text import launch, line_of, text

from cute_gemm.errors import FaultError, PtxError
from cute_gemm.ptx import run

WORDS = np.array(
    [0, 1, 2, 3, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF, 0x12345678], np.uint32
)
PAIRS = np.array([(a, b) for a in WORDS for b in WORDS], np.uint32)


def binary(statement: str, pairs: np.ndarray = PAIRS, wide: bool = False) -> np.ndarray:
    """Execute a statement on %r20 and %r21. The result is %r22, or %d20."""
    load = "ld.global.v2.u32 {%r20, %r21}, [%d4];"
    store = "st.global.u64 [%d5], %d20;" if wide else "st.global.u32 [%d5], %r22;"
    out = np.zeros(len(pairs), np.uint64 if wide else np.uint32)
    if wide:
        return launch(text(f"{load} {statement} {store}", step=8), pairs.astype(np.uint32), out)
    code = text(f"shl.b64 %d9, %d3, 1; add.s64 %d9, %d1, %d9; {load} {statement} {store}")
    return launch(code.replace("[%d4]", "[%d9]"), pairs.astype(np.uint32), out)


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def toward_zero(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


INTEGERS = {
    "add.s32 %r22, %r20, %r21;": lambda a, b: a + b,
    "sub.u32 %r22, %r20, %r21;": lambda a, b: a - b,
    "mul.lo.s32 %r22, %r20, %r21;": lambda a, b: a * b,
    "mul.hi.u32 %r22, %r20, %r21;": lambda a, b: a * b >> 32,
    "mul.hi.s32 %r22, %r20, %r21;": lambda a, b: signed(a) * signed(b) >> 32,
    "mad.lo.s32 %r22, %r20, %r21, 7;": lambda a, b: a * b + 7,
    "min.s32 %r22, %r20, %r21;": lambda a, b: min(signed(a), signed(b)),
    "max.u32 %r22, %r20, %r21;": max, "and.b32 %r22, %r20, %r21;": lambda a, b: a & b,
    "or.b32 %r22, %r20, %r21;": lambda a, b: a | b, "xor.b32 %r22, %r20, %r21;": lambda a, b: a ^ b,
    "not.b32 %r22, %r20;": lambda a, b: ~a, "neg.s32 %r22, %r20;": lambda a, b: -a,
    "abs.s32 %r22, %r20;": lambda a, b: abs(signed(a)),
    "shl.b32 %r22, %r20, %r21;": lambda a, b: a << min(b, 32),
    "shr.u32 %r22, %r20, %r21;": lambda a, b: a >> min(b, 32),
    "shr.s32 %r22, %r20, %r21;": lambda a, b: signed(a) >> min(b, 31),
    "shr.s32 %r22, %r20, 40;": lambda a, b: signed(a) >> 31,
    "shl.b32 %r22, %r20, 5;": lambda a, b: a << 5,
    "cvt.u64.u32 %d31, %r20; cvt.u64.u32 %d32, %r21; bfi.b64 %d31, %d31, %d32, 28, 8; "
    "shr.u64 %d31, %d31, 8; cvt.u32.u64 %r22, %d31;": lambda a, b: (
        ((a & 255) << 28 | b & ~(255 << 28)) >> 8
    ),
    "bfi.b32 %r22, %r20, %r21, 8, 12;": lambda a, b: (a & 0xFFF) << 8 | (b & ~0xFFF00),
    "prmt.b32 %r22, %r20, %r21, 0x7531;": lambda a, b: sum(
        ((a | b << 32) >> 8 * n & 255) << 8 * i for i, n in enumerate((1, 3, 5, 7))
    ),
    "setp.lt.s32 %p1, %r20, %r21; selp.u32 %r22, 1, 0, %p1;": lambda a, b: signed(a) < signed(b),
    "setp.lo.u32 %p1, %r20, %r21; selp.u32 %r22, 1, 0, %p1;": lambda a, b: a < b,
    "setp.ge.u32 %p1, %r20, %r21; selp.u32 %r22, 1, 0, %p1;": lambda a, b: a >= b,
    "setp.ne.b32 %p1, %r20, %r21; @%p1 mov.u32 %r22, 1; @!%p1 mov.u32 %r22, 5;": lambda a, b: (
        1 if a != b else 5
    ),
    "setp.gt.s32 %p2, %r20, 5; setp.eq.and.s32 %p1, %r21, 3, %p2; selp.b32 %r22, 1, 0, %p1;": (
        lambda a, b: signed(a) > 5 and b == 3
    ),
    "cvt.u16.u32 %h1, %r20; cvt.s32.s16 %r22, %h1;": lambda a, b: signed(a, 16),
    "cvt.s32.s8 %r22, %r20;": lambda a, b: signed(a, 8),
    "cvt.u16.u32 %h1, %r20; mul.wide.u16 %r22, %h1, 1000;": lambda a, b: (a & 0xFFFF) * 1000,
    "mov.b32 {%h1, %h2}, %r20; mov.b32 %r22, {%h2, %h1};": lambda a, b: (
        a >> 16 | (a & 0xFFFF) << 16
    ),
    "popc.b32 %r22, %r20;": lambda a, b: a.bit_count(),
    "clz.b32 %r22, %r20;": lambda a, b: 32 - a.bit_length(),
    "bfe.u32 %r22, %r20, 5, 9;": lambda a, b: a >> 5 & 511,
    "bfe.u32 %r22, %r20, %r21, 40;": lambda a, b: a >> min(b & 255, 32),
    "bfe.s32 %r22, %r20, 4, 8;": lambda a, b: signed(a >> 4, 8),
    "bfe.s32 %r22, %r20, 28, 8;": lambda a, b: signed(a) >> 28,
    "bfe.s32 %r22, %r20, %r21, 0;": lambda a, b: 0, "lop3.b32 %r22, %r20, %r21, %r2, 0xE8;": None,
    "lop3.b32 %r22, %r20, %r21, 12345, 0x96;": lambda a, b: a ^ b ^ 12345,
    "lop3.b32 %r22, %r20, %r21, 12345, 0xCA;": lambda a, b: a & b | ~a & 12345,
    "shf.l.wrap.b32 %r22, %r20, %r21, 35;": lambda a, b: (a | b << 32) << 3 >> 32,
    "shf.r.wrap.b32 %r22, %r20, %r21, %r21;": lambda a, b: (a | b << 32) >> (b & 31),
    "shf.r.clamp.b32 %r22, %r20, %r21, %r20;": lambda a, b: (a | b << 32) >> min(a, 32),
    "dp4a.s32.s32 %r22, %r20, %r21, 9;": lambda a, b: (
        9 + sum(signed(a >> 8 * i, 8) * signed(b >> 8 * i, 8) for i in range(4))
    ),
    "dp2a.lo.s32.s32 %r22, %r20, %r21, 9;": lambda a, b: (
        9 + sum(signed(a >> 16 * i, 16) * signed(b >> 8 * i, 8) for i in range(2))
    ),
    "dp2a.hi.s32.u32 %r22, %r20, %r21, 9;": lambda a, b: (
        9 + sum(signed(a >> 16 * i, 16) * (b >> 16 + 8 * i & 255) for i in range(2))
    ),
}  # fmt: skip


@pytest.mark.parametrize("statement", INTEGERS)
def test_integers(statement):
    got = binary(statement)
    function = INTEGERS[statement]
    if function is None:  # the majority of a, b and the number of the thread
        lanes = np.arange(len(PAIRS), dtype=np.uint32)
        a, b = PAIRS.T
        assert (got == (a & b | a & lanes | b & lanes)).all()
        return
    expected = [int(function(int(a), int(b))) & 0xFFFFFFFF for a, b in PAIRS]
    assert got.tolist() == expected


WIDE = {
    "mul.wide.u32 %d20, %r20, %r21;": lambda a, b: a * b,
    "mul.wide.s32 %d20, %r20, %r21;": lambda a, b: signed(a) * signed(b),
    "mad.wide.s32 %d20, %r20, %r21, %d3;": None,
    "cvt.s64.s32 %d20, %r20;": lambda a, b: signed(a),
    "cvt.u64.u32 %d20, %r20;": lambda a, b: a,
    "mov.b64 %d20, {%r20, %r21};": lambda a, b: a | b << 32,
    "mov.b64 %d21, {%r20, %r21}; mul.lo.s64 %d20, %d21, %d21;": lambda a, b: (a | b << 32) ** 2,
    "mov.b64 %d21, {%r20, %r21}; shr.s64 %d20, %d21, 20;": lambda a, b: (
        signed(a | b << 32, 64) >> 20
    ),
    "mov.b64 %d21, {%r20, %r21}; shr.u64 %d20, %d21, %r20;": lambda a, b: (
        (a | b << 32) >> min(a, 64)
    ),
    "mov.b64 %d21, {%r20, %r21}; shl.b64 %d20, %d21, 3;": lambda a, b: (a | b << 32) << 3,
    "mov.b64 %d21, {%r20, %r21}; neg.s64 %d20, %d21;": lambda a, b: -(a | b << 32),
}


@pytest.mark.parametrize("statement", WIDE)
def test_integers_of_64_bits(statement):
    got = binary(statement, wide=True)
    for i, (a, b) in enumerate(PAIRS.tolist()):
        function = WIDE[statement]
        expected = function(a, b) if function else signed(a) * signed(b) + 8 * i
        assert int(got[i]) == expected & (1 << 64) - 1, (a, b)


@pytest.mark.parametrize(("name", "first", "second"), [("s32", signed, signed), ("u32", int, int)])
def test_division_goes_to_zero(name, first, second):
    pairs = PAIRS[PAIRS[:, 1] != 0]
    quotients = binary(f"div.{name} %r22, %r20, %r21;", pairs)
    rests = binary(f"rem.{name} %r22, %r20, %r21;", pairs)
    for (a, b), quotient, rest in zip(pairs.tolist(), quotients, rests, strict=True):
        a, b = first(a), second(b)
        assert int(quotient) == toward_zero(a, b) & 0xFFFFFFFF
        assert int(rest) == (a - b * toward_zero(a, b)) & 0xFFFFFFFF
    assert (binary(f"div.{name} %r22, %r20, 0;") == 0xFFFFFFFF).all()


def floats(statement: str, values: np.ndarray) -> np.ndarray:
    """Execute a statement on %f1. The result is %f2."""
    body = f"ld.global.f32 %f1, [%d4]; {statement} st.global.f32 [%d5], %f2;"
    return launch(text(body), values.astype(np.float32), np.zeros(len(values), np.float32))


NUMBERS = np.array(
    [0, -0.0, 1, -1.5, np.inf, -np.inf, np.nan, 1e-40, 3.4e38, 65520, 65519, 1 / 3, -(2.0**-25)]
).astype(np.float32)


@pytest.mark.parametrize(
    ("test", "function"),
    [("eq", np.equal), ("lt", np.less), ("ge", np.greater_equal), ("neu", np.not_equal),
     ("ne", lambda a, b: (a < b) | (a > b)), ("geu", lambda a, b: ~(a < b)),
     ("gtu", lambda a, b: ~(a <= b)), ("equ", lambda a, b: (a == b) | (a != a)),
     ("nan", lambda a, b: a != a), ("num", lambda a, b: a == a)],
)  # fmt: skip
def test_comparisons_of_floats_with_nan(test, function):
    got = floats(f"setp.{test}.f32 %p1, %f1, 0f3F800000; selp.f32 %f2, 1.0, 0.0, %p1;", NUMBERS)
    assert (got == function(NUMBERS, np.float32(1))).all()


def flushed(x):
    """Return float32 numbers, with subnormal numbers replaced by zeros."""
    x = x.astype(np.float32)
    return np.where(abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


@pytest.mark.parametrize(
    ("statement", "function"),
    [("add.f32 %f2, %f1, 0f3EAAAAAB;", lambda x: x + np.float32(1 / 3)),
     ("sub.rn.f32 %f2, 0f3F800000, %f1;", lambda x: 1 - x),
     ("mul.f32 %f2, %f1, %f1;", lambda x: x * x), ("neg.f32 %f2, %f1;", np.negative),
     ("abs.f32 %f2, %f1;", abs), ("mov.f32 %f2, %f1;", lambda x: x),
     ("fma.rn.f32 %f2, %f1, 0f40400000, %f1;", lambda x: (x.astype(float) * 4).astype("f4")),
     ("mov.b32 %r20, %f1; and.b32 %r20, %r20, 0x7FFFFFFF; mov.b32 %f2, %r20;", abs),
     ("cvt.f64.f32 %g1, %f1; mul.f64 %g1, %g1, 0d4008000000000000; cvt.rn.f32.f64 %f2, %g1;",
      lambda x: (x.astype(float) * 3).astype("f4")),
     ("cvt.rn.f16.f32 %h1, %f1; cvt.f32.f16 %f2, %h1;", lambda x: x.astype("f2").astype("f4")),
     ("cvt.rn.f16x2.f32 %r20, %f1, 0f40000000; mov.b32 {%h1, %h2}, %r20; cvt.f32.f16 %f2, %h2;",
      lambda x: x.astype("f2").astype("f4")),
     ("cvt.rn.bf16.f32 %h1, %f1; mov.b32 %r20, {0, %h1}; mov.b32 %f2, %r20;",
      lambda x: np.array([float(one) if one != one or abs(one) == np.inf else bf16(one)
                          for one in x], "f4")),
     ("div.rn.f32 %f2, %f1, 0f40400000;", lambda x: x / np.float32(3)),
     ("rcp.rn.f32 %f2, %f1;", lambda x: 1 / x), ("sqrt.rn.f32 %f2, %f1;", np.sqrt),
     ("min.f32 %f2, %f1, 0f3F800000;", lambda x: np.fmin(x, np.float32(1))),
     ("max.f32 %f2, %f1, 0f80000000;",
      lambda x: np.where(x > 0, x, np.where((x == 0) & ~np.signbit(x), np.float32(0), -0.0))),
     ("mov.b32 %r20, %f1; cvt.rn.f32.s32 %f2, %r20;", lambda x: x.view("i4").astype("f4")),
     ("cvt.rni.f32.f32 %f2, %f1;", np.rint), ("cvt.rmi.f32.f32 %f2, %f1;", np.floor),
     ("cvt.sat.f32.f32 %f2, %f1;", lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1))),
     ("copysign.f32 %f2, %f1, 0f40400000;", lambda x: np.copysign(np.float32(3), x)),
     ("ex2.approx.ftz.f32 %f2, %f1;", lambda x: flushed(np.exp2(flushed(x).astype(float)))),
     ("lg2.approx.ftz.f32 %f2, %f1;", lambda x: flushed(np.log2(flushed(x).astype(float)))),
     ("rcp.approx.ftz.f32 %f2, %f1;", lambda x: flushed(1 / flushed(x).astype(float))),
     ("rsqrt.approx.f32 %f2, %f1;", lambda x: 1 / np.sqrt(x.astype(float))),
     ("tanh.approx.f32 %f2, %f1;", lambda x: np.tanh(x.astype(float))),
     ("mov.b32 %r20, %f1; cvt.rn.f16.s32 %h1, %r20; cvt.f32.f16 %f2, %h1;",
      lambda x: x.view("i4").astype("f8").astype("f2").astype("f4"))],
)  # fmt: skip
def test_floats(statement, function):
    with np.errstate(all="ignore"):
        expected = function(NUMBERS)
    got = floats(statement, NUMBERS)
    same = got.view(np.uint32) == expected.astype(np.float32).view(np.uint32)
    assert (same | (np.isnan(got) & np.isnan(expected))).all()


@pytest.mark.parametrize("how", ["rzi", "rni", "rmi", "rpi"])
@pytest.mark.parametrize("to", ["s32", "u32", "s64", "u64"])
def test_floats_to_integers(how, to):
    values = [0.5, 1.5, -0.5, -1.5, 2.5, 3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, np.nan, 2.0**31,
              -(2.0**31), 2.0**63, 2.0**64, 7, -7.75]  # fmt: skip
    wide = to.endswith("64")
    target = "%d20" if wide else "%r20"
    body = f"ld.global.f64 %g1, [%d4]; cvt.{how}.{to}.f64 {target}, %g1;"
    body += (
        "st.global.u64 [%d5], %d20;"
        if wide
        else "cvt.s64.s32 %d20, %r20; st.global.u64 [%d5], %d20;"
    )
    got = launch(text(body, step=8), np.array(values), np.zeros(len(values), np.int64))
    bounds = np.iinfo({"s": "int", "u": "uint"}[to[0]] + to[1:])
    least, most = int(bounds.min), int(bounds.max)
    rounded = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}[how]
    for x, result in zip(values, got.tolist(), strict=True):
        exact = 0 if np.isnan(x) else least if x < least else most if x > most else int(rounded(x))
        assert signed(exact, 64 if wide else 32) == result, x


def bf16(x: np.float32) -> float:
    """Return the nearest bfloat16 by definition: 8 bits of the mantissa, ties to even."""
    exponent = max(int(np.frexp(np.float64(x))[1]), -125)
    step = 2.0 ** (exponent - 8)
    return float(np.round(np.float64(x) / step) * step)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_lane_by_lane(count, transposed):
    """Test the figure "ldmatrix fragment layout" of PTX ISA 9.7.14.5.15."""
    halves = np.random.default_rng(count).integers(0, 2**16, (2, 4, 8, 8), dtype=np.uint16)
    names = ", ".join(f"%r{20 + i}" for i in range(count))
    stores = "".join(f"st.global.u32 [%d9+{4 * i}], %r{20 + i};" for i in range(count))
    body = f"""
    mul.lo.s32 %r9, %r2, 16; add.s32 %r9, %r9, %r7; mul.wide.s32 %d8, %r2, 16;
    add.s64 %d7, %d1, %d8; ld.global.v4.u32 {{%r30, %r31, %r32, %r33}}, [%d7];
    st.shared.v4.u32 [%r9], {{%r30, %r31, %r32, %r33}};
    bar.sync 0;
    and.b32 %r10, %r2, 31; mul.lo.s32 %r11, %r10, 16; shr.u32 %r12, %r2, 5;
    mad.lo.s32 %r11, %r12, 512, %r11; add.s32 %r11, %r11, %r7;
    ldmatrix.sync.aligned.m8n8.x{count}{".trans" if transposed else ""}.shared.b16 {{{names}}},
        [%r11];
    mul.wide.s32 %d8, %r2, {4 * count}; add.s64 %d9, %d2, %d8; {stores}"""
    got = launch(text(body), halves, np.zeros((64, count), np.uint32), block=64)
    for warp in range(2):
        for lane in range(32):
            for i in range(count):
                row, column = lane // 4, 2 * (lane % 4)
                matrix = halves[warp, i].T if transposed else halves[warp, i]
                low, high = matrix[row, column : column + 2]
                assert int(got[32 * warp + lane, i]) == int(low) | int(high) << 16


# Fragments (shape, type of A and B, elements per register): row and column of element i of a lane,
# as in sections of PTX ISA 9.7.14.5.
def a_place(shape, per, g, t, i):
    block, inner = divmod(i, per)
    if shape == "m8n8k4":
        return g, t
    return g + 8 * (block % 2), per * t + inner + 4 * per * (block // 2)


def b_place(shape, per, g, t, i):
    block, inner = divmod(i, per)
    return per * t + inner + 4 * per * block, g


ATOMS = [
    ("m16n8k16", "f16", 2, 4, 2), ("m16n8k8", "f16", 2, 2, 1), ("m16n8k16", "bf16", 2, 4, 2),
    ("m16n8k8", "bf16", 2, 2, 1), ("m16n8k8", "tf32", 1, 4, 2), ("m16n8k4", "tf32", 1, 2, 1),
    ("m16n8k32", "s8", 4, 4, 2), ("m16n8k16", "s8", 4, 2, 1), ("m16n8k32", "u8", 4, 4, 2),
    ("m8n8k4", "f64", 1, 1, 1), ("m16n8k4", "f64", 1, 2, 1), ("m16n8k8", "f64", 1, 4, 2),
    ("m16n8k16", "f64", 1, 8, 4),
]  # fmt: skip


def matrices(kind: str, m: int, k: int):
    """Return A, B, C of two warps and their bits."""
    generator = np.random.default_rng(m * k)
    if kind in ("s8", "u8"):
        low, high = (-128, 128) if kind == "s8" else (0, 256)
        a, b = generator.integers(low, high, (2, m, k)), generator.integers(low, high, (2, k, 8))
        dtype = np.int8 if kind == "s8" else np.uint8
        return (
            a, b, generator.integers(-(2**31), 2**31, (2, m, 8)), a.astype(dtype), b.astype(dtype),
        )  # fmt: skip
    a, b = generator.standard_normal((2, m, k)), generator.standard_normal((2, k, 8))
    c = generator.standard_normal((2, m, 8))
    if kind == "f64":
        return a, b, c, a, b
    if kind == "f16":
        return a, b, c.astype("f4"), a.astype("f2"), b.astype("f2")
    cut = 16 if kind == "bf16" else 13
    bits = [x.astype("f4").view("u4") >> cut << cut for x in (a, b)]
    if kind == "tf32":  # the lower 13 bits are ignored
        return a, b, c.astype("f4"), *(x.view("f4") for x in bits)
    return a, b, c.astype("f4"), *((x >> 16).astype("u2") for x in bits)


@pytest.mark.parametrize(("shape", "kind", "per", "lefts", "rights"), ATOMS)
def test_mma_lane_by_lane(shape, kind, per, lefts, rights):
    m, k = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    _, _, c, a, b = matrices(kind, m, k)
    wide = kind == "f64"
    sums = "s32" if kind in ("s8", "u8") else "f64" if wide else "f32"
    out = {"s32": np.int32, "f32": np.float32, "f64": np.float64}[sums]
    count = m // 4
    # The registers of every lane in order, as 8 bytes or 4.
    unit = 8 if wide else 4
    total = lefts + rights + count
    given = np.zeros((64, total, unit), np.uint8)
    for lane in range(64):
        warp, g, t = lane // 32, lane % 32 // 4, lane % 4
        parts = [
            np.array([a[warp][a_place(shape, per, g, t, i)] for i in range(lefts * per)]),
            np.array([b[warp][b_place(shape, per, g, t, i)] for i in range(rights * per)]),
            np.array([c[warp][g + 8 * (i // 2), 2 * t + i % 2] for i in range(count)], out),
        ]
        given[lane] = np.frombuffer(b"".join(x.tobytes() for x in parts), np.uint8).reshape(
            total, unit
        )
    of = {"f64": "%g", "f32": "%f", "s32": "%r"}[sums]
    factor, bits = ("%g", "f64") if wide else ("%r", "b32")
    names = [f"{factor}{20 + i}" for i in range(lefts + rights)] + [
        f"{of}{1 + i + 40 * (of == '%r')}" for i in range(count)
    ]
    kinds = [bits] * (lefts + rights) + ["b32" if sums == "s32" else sums] * count
    loads = "".join(
        f"ld.global.{kind_} {name}, [%d4+{unit * i}];"
        for i, (name, kind_) in enumerate(zip(names, kinds, strict=True))
    )
    d = names[-count:]
    code = text(
        f"{loads} mul.wide.s32 %d9, %r2, {unit * count}; add.s64 %d9, %d2, %d9;"
        f"mma.sync.aligned.{shape}.row.col.{sums}.{kind}.{kind}.{sums} {{{', '.join(d)}}},"
        f"{{{', '.join(names[:lefts])}}}, {{{', '.join(names[lefts:-count])}}}, {{{', '.join(d)}}};"
        + "".join(f"st.global.{kinds[-1]} [%d9+{unit * i}], {name};" for i, name in enumerate(d)),
        step=unit * total,
    )
    got = launch(code, given, np.zeros((64, count), out), block=64)
    expected = product(kind, a, b, c)
    for lane in range(64):
        warp, g, t = lane // 32, lane % 32 // 4, lane % 4
        for i in range(count):
            assert got[lane, i] == expected[warp, g + 8 * (i // 2), 2 * t + i % 2]


def product(kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return C + A B in the order that the interpreter specifies."""
    if kind in ("s8", "u8"):
        return (c + a.astype(int) @ b.astype(int)).astype(np.int32)
    if kind == "bf16":
        a, b = ((x.astype("u4") << 16).view("f4") for x in (a, b))
    if kind == "f64":
        total = c.copy()
        for w, i, j in np.ndindex(c.shape):
            for k in range(a.shape[2]):
                total[w, i, j] = float(
                    Fraction(a[w, i, k]) * Fraction(b[w, k, j]) + Fraction(total[w, i, j])
                )
        return total
    total = c.astype(float)
    for k in range(a.shape[2]):
        total = total + a[:, :, k, None].astype(float) * b[:, k, None, :].astype(float)
    return total.astype(np.float32)


def test_integer_mma_that_clamps():
    body = """
    mov.u32 %r20, 0x7F7F7F7F; mov.u32 %r21, 0x7FFFFFFF; mov.u32 %r22, 0x80000000;
    mma.sync.aligned.m16n8k16.row.col.satfinite.s32.s8.s8.s32 {%r30, %r31, %r32, %r33},
        {%r20, %r20}, {%r20}, {%r21, %r22, %r21, %r22};
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r34, %r35, %r36, %r37},
        {%r20, %r20}, {%r20}, {%r21, %r22, %r21, %r22};
    sub.s32 %r38, %r30, %r34; add.s32 %r39, %r31, %r35; st.global.v2.u32 [%d5], {%r30, %r34};"""
    got = launch(text(body, step=8), np.zeros((32, 2), "i4"), np.zeros((32, 2), "i4"), block=32)
    dot = 16 * 127 * 127
    assert (got == [2**31 - 1, -(2**31) + dot - 1]).all()


@pytest.mark.parametrize(
    ("mode", "by", "clamp", "source"),
    [("down", 3, 31, lambda i: i + 3 if i + 3 < 32 else i),
     ("up", 2, 0, lambda i: i - 2 if i > 1 else i),
     ("bfly", 5, 31, lambda i: i ^ 5), ("idx", 9, 31, lambda i: 9),
     ("idx", 3, 0x181F, lambda i: i // 8 * 8 + 3),
     ("down", 4, 0x181F, lambda i: i + 4 if i % 8 < 4 else i)],
)  # fmt: skip
def test_shuffles(mode, by, clamp, source):
    body = f"""ld.global.u32 %r20, [%d4]; shfl.sync.{mode}.b32 %r21|%p1, %r20, {by}, {clamp}, -1;
    st.global.u32 [%d5], %r21;"""
    given = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
    got = launch(text(body), given, np.zeros(64, np.uint32))
    assert got.tolist() == [given[i // 32 * 32 + source(i % 32)] for i in range(64)]


def test_loads_extend_and_stores_cut():
    body = """ld.global.s8 %r20, [%d4]; ld.global.u8 %h1, [%d4+1]; ld.global.s16 %d20, [%d4+2];
    cvt.u32.u16 %r21, %h1; add.s32 %r20, %r20, %r21; cvt.u32.u64 %r22, %d20;
    add.s32 %r20, %r20, %r22;
    st.shared.u8 [%r8], %r20; shr.s32 %r23, %r20, 8; st.shared.u16 [%r8+2], %r23;
    st.shared.u8 [%r8+1], 7; ld.shared.u32 %r24, [%r8]; st.global.u32 [%d5], %r24;"""
    given = np.random.default_rng(1).integers(0, 256, (64, 4), dtype=np.uint8)
    got = launch(text(body), given, np.zeros(64, np.uint32))
    for x, y in zip(given, got, strict=True):
        total = int(np.int8(x[0])) + int(x[1]) + int(x[2:].view(np.int16)[0])
        assert int(y) == (total & 255) | 7 << 8 | (total >> 8 & 0xFFFF) << 16


def test_generic_addresses_reach_both_memories():
    body = """cvt.u64.u32 %d20, %r8; cvta.shared.u64 %d21, %d20; ld.u32 %r20, [%d4];
    st.u32 [%d21], %r20; ld.shared.u32 %r21, [%r8]; add.s32 %r21, %r21, 1; st.u32 [%d5], %r21;"""
    got = launch(text(body), np.arange(40, dtype=np.uint32), np.zeros(40, np.uint32))
    assert (got == np.arange(1, 41)).all()


def test_variables_of_the_text():
    outside = ".global .align 4 .b32 table[4] = {5, 6, 7, -8};\n.const .u32 one = 1;"
    body = """and.b32 %r20, %r2, 3; mul.wide.u32 %d20, %r20, 4; mov.u64 %d21, table;
    add.s64 %d21, %d21, %d20; ld.global.s32 %r21, [%d21]; ld.const.u32 %r22, [one];
    add.s32 %r21, %r21, %r22; st.global.u32 [%d5], %r21;"""
    got = launch(text(body, outside=outside), np.zeros(8, "i4"), np.zeros(8, "i4"))
    assert got.tolist() == [6, 7, 8, -7] * 2


@pytest.mark.parametrize(
    "statement",
    ["frob.f32 %f1, %f2;", "add.sat.s32 %r20, %r2, 1;", "add.ftz.f32 %f1, %f2, %f2;",
     "mul.hi.s64 %d20, %d3, %d3;", "cvt.rn.f32.f32 %f2, %f1;", "fma.rz.f32 %f1, %f1, %f1, %f1;",
     "add.s32 %d20, %d3, 1;", "ld.global.b128 %d20, [%d4];", "bar.red.popc.u32 %r20, 1, %p1;",
     "mov.u32 %r20, %clock;", "shfl.down.b32 %r20, %r2, 1, 31;", "cp.reduce.async.bulk.u32;",
     "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r20, %r21}, {%r2, %r2, %r2, %r2}, "
     "{%r2, %r2}, {%r2, %r2};", "bfi.b32 %r20, %r2, %r2, %r2, 4;",
     "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r20}, [%r8];", "cvt.u32.f32 %r20, %f1;"],
)  # fmt: skip
def test_what_is_not_executed_is_refused_with_its_line(statement):
    code = text(statement)
    with pytest.raises(PtxError, match="is not supported by the interpreter") as caught:
        launch(code, np.zeros(4, "i4"), np.zeros(4, "i4"))
    assert f"line {line_of(code, statement)}: " in str(caught.value)


def test_arguments_that_do_not_fit():
    with pytest.raises(PtxError, match="2 arguments; k takes 3"):
        run(text(""), "k", (1,), (1,), 0, [1, 2])
    with pytest.raises(PtxError, match=r"argument 2 of k has 8 bytes; its parameter 4"):
        run(text(""), "k", (1,), (1,), 0, [1, 2, np.float64(1)])
    with pytest.raises(PtxError, match="more than 1024 threads"):
        run(text(""), "k", (1,), (64, 32), 0, [1, 2, 3])
    with pytest.raises(FaultError, match="far from every buffer"):
        run(text("ld.global.u32 %r20, [%d4];"), "k", (1,), (1,), 0, [64, 2, 3])


@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_stmatrix_is_the_other_way_of_ldmatrix(transposed):
    body = f"""mul.wide.s32 %d8, %r2, 16; add.s64 %d7, %d1, %d8; add.s64 %d6, %d2, %d8;
    ld.global.v4.u32 {{%r20, %r21, %r22, %r23}}, [%d7]; mul.lo.s32 %r9, %r2, 16;
    add.s32 %r9, %r9, %r7;
    stmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 [%r9], {{%r20, %r21, %r22, %r23}};
    bar.sync 0; ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16
        {{%r24, %r25, %r26, %r27}}, [%r9]; st.global.v4.u32 [%d6], {{%r24, %r25, %r26, %r27}};"""
    given = np.random.default_rng(3).integers(0, 2**32, (64, 4), dtype=np.uint32)
    assert (launch(text(body), given, np.zeros((64, 4), np.uint32), block=64) == given).all()


def test_votes():
    body = """setp.gt.u32 %p1, %r2, 20; vote.sync.ballot.b32 %r20, %p1, -1;
    vote.sync.all.pred %p2, %p1, -1; vote.sync.any.pred %p3, %p1, -1;
    vote.sync.uni.pred %p4, %p1, -1; selp.b32 %r21, 1, 0, %p2; selp.b32 %r22, 2, 0, %p3;
    selp.b32 %r23, 4, 0, %p4; add.s32 %r21, %r21, %r22; add.s32 %r21, %r21, %r23;
    st.global.v2.u32 [%d5], {%r20, %r21};"""
    got = launch(text(body, step=8), np.zeros(128, "u4"), np.zeros((64, 2), "u4"), block=64)
    assert (got[:32] == [0xFFFFFFFF << 21 & 0xFFFFFFFF, 2]).all()
    assert (got[32:] == [0xFFFFFFFF, 7]).all()


def test_atomic_operations():
    body = """atom.global.add.u32 %r20, [%d2], 3; red.global.max.s32 [%d2+4], %r2;
    red.global.add.f32 [%d2+8], 0f3F000000; atom.global.cas.b32 %r21, [%d2+12], 0, %r5;
    red.relaxed.gpu.global.or.b32 [%d2+16], %r6; mad.lo.s32 %r22, %r5, 4, 64;
    cvt.u64.u32 %d20, %r22; add.s64 %d20, %d20, %d2; st.global.u32 [%d20], %r20;"""
    out = np.zeros(16 + 64, np.uint32)
    out[3] = 0
    got = launch(text(body), np.zeros(64, "u4"), out, grid=2, block=32)
    assert got[0] == 3 * 64 and got[1] == 31 and got[2:3].view("f4")[0] == 32
    assert got[3] == 1 and got[4] == 124  # thread 0 leaves a 0 there
    assert sorted(got[16:].tolist()) == [3 * i for i in range(64)]


@pytest.mark.parametrize("branch", ["bra END;", "setp.eq.s32 %p1, %r2, 0; @%p1 bra END;"])
def test_a_branch_to_the_end_of_the_text_is_refused(branch):
    with pytest.raises(PtxError, match=r"^line 30: .* goes to a label without an instruction"):
        run(text(f"{branch} ret; END:").replace("ret;\n}", "}"), "k", (1,), (32,), 0, [0, 0, 0])
