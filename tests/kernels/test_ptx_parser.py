"""Test the PTX parser: declarations, labels, predicates, operands, blocks, invalid text."""

import random
import re
import struct
from collections import Counter

import numpy as np
import pytest
from ptx_text import launch, line_of, text

from cute_gemm import plan
from cute_gemm.errors import FaultError, GemmError, PtxError
from cute_gemm.plan.interpreted import execute
from cute_gemm.ptx.parser import Address, Immediate, Name, Register, Vector, entries, parse


def last(statement: str, count: int = 1):
    """Return the last instructions of an entry, before its ret."""
    return parse(text(statement)).instructions[-1 - count : -1]


@pytest.mark.parametrize(
    ("written", "value"),
    [("7", 7), ("-9", -9), ("0x1F", 31), ("0X1fU", 31), ("-0x10", -16), ("0b101", 5), ("017", 15),
     ("0f3F800000", 1.0), ("0fBF000000", -0.5), ("0d3FF8000000000000", 1.5), ("2.5", 2.5),
     ("0", 0)],
)  # fmt: skip
def test_constants(written, value):
    (one,) = last(f"mov.b32 %r20, {written};")
    assert one.operands[1] == Immediate(value)


def test_a_float_keeps_its_bits():
    (one,) = last("mov.f32 %f1, 0f00000001;")
    assert struct.pack("<f", one.operands[1].value) == b"\1\0\0\0"


def test_operands():
    (one,) = last("ld.global.v2.f32 {%f1,  %f2}, [%d4+-16];")
    assert one.op == ("ld", "global", "v2", "f32") and one.guard is None
    assert [part.name for part in one.operands[0].parts] == ["%f1", "%f2"]
    assert isinstance(one.operands[1], Address)
    assert one.operands[1].base.name == "%d4" and one.operands[1].offset == -16
    (one,) = last("@!%p3 st.shared.u16 [space+6], %h2;")
    assert one.operands[0] == Address(Name("space"), 6)
    assert one.guard[0].name == "%p3" and one.guard[1]
    (one,) = last("shfl.sync.down.b32 %r20|%p1, %r2, 1, 31, -1;")
    assert isinstance(one.operands[0], Vector) and one.operands[4] == Immediate(-1)
    # No space after the opcode, as in inline assembly.
    (one,) = last("mov.b32{%h1,%h2},%r2;")
    assert one.op == ("mov", "b32") and len(one.operands) == 2


def test_lines_and_text_of_an_instruction():
    code = text("// a comment; with a semicolon\n  /* two\n lines */ add.s32  %r20, %r2,\n 1;")
    one = parse(code).instructions[-2]
    assert one.text == "add.s32 %r20, %r2, 1" and one.line == line_of(code, "add.s32  %r20")


def test_lines_for_debuggers_are_passed_over():
    code = text(
        ".loc 1 5 3, function_name $L, inlined_at 1 2 3\n add.s32 %r20, %r2, 1;\n.loc 1 6 0"
    )
    assert parse(code).instructions[-2].op == ("add", "s32")


def test_blocks_have_registers_and_labels_of_their_own():
    code = text(
        "{.reg .pred p; .reg .b32 %r2, t;\n mov.b32 t, %r3; L: setp.ne.b32 p, t, 0; @p bra L;}\n"
        "{.reg .b32 t;\n mov.b32 t, %r2; L: bra L;}\n L: bra L;"
    )
    kernel = parse(code)
    jumps = [one.operands[0].name for one in kernel.instructions if one.op[0] == "bra"]
    assert len(set(jumps)) == 3 and set(jumps) == set(kernel.labels)
    assert [kernel.instructions[kernel.labels[name]].op[0] for name in jumps] == [
        "setp", "bra", "bra",
    ]  # fmt: skip
    moves = [one for one in kernel.instructions if one.op == ("mov", "b32")]
    assert moves[0].operands[0].slot != moves[1].operands[0].slot


def test_registers_are_those_that_are_used():
    kernel = parse(text("add.f64 %g7, %g8, %g7;"))
    assert sum(register.type == "f64" for register in kernel.registers) == 2
    one = kernel.instructions[-2]
    assert one.operands[0] is one.operands[2] and isinstance(one.operands[0], Register)


def test_parameters_and_shared_memory_lie_as_they_are_aligned():
    kernel = parse(
        """.version 9.0
        .extern .shared .align 128 .b8 rest[];
        .visible .entry e(.param .u32 a, .param .align 16 .b8 b[24], .param .f64 c)
        .minnctapersm 2
        {
            .shared .u16 small;
            .shared .align 8 .f64 big[3];
            .reg .b64 %rd<2>;
            mov.u64 %rd1, rest;
            ret;
        }"""
    )
    assert [(v.offset, v.size) for v in kernel.parameters.values()] == [(0, 4), (16, 24), (40, 8)]
    assert [(v.name, v.offset, v.size) for v in kernel.shared.values()] == [
        ("small", 0, 2), ("big", 8, 24), ("rest", 128, None),
    ]  # fmt: skip
    assert kernel.static_shared == 32


def test_variables_that_nobody_names_are_not_looked_at():
    unused = "\n".join(f".global .align 4 .u32 unused{i} = nonsense;" for i in range(3000))
    used = ".visible .global .align 8 .b32 table[3] = {1, -1, 0x10};"
    kernel = parse(text("ld.global.u32 %r20, [table+4];", outside=f"{unused}\n{used}"))
    assert list(kernel.globals) == ["table"]
    assert kernel.globals["table"].value == struct.pack("<iii", 1, -1, 16)


def test_an_entry_is_chosen_by_its_name():
    both = text("") + text("add.s32 %r20, %r2, 1;").replace("entry k(", "entry other(")
    assert entries(both) == ("k", "other")
    assert len(parse(both, "other").instructions) == len(parse(both, "k").instructions) + 1
    with pytest.raises(PtxError, match="has several entries; expected the name of one of k, other"):
        parse(both)
    with pytest.raises(PtxError, match="has no entry 'x'; expected one of k"):
        parse(text(""), "x")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("bra nowhere;", "undefined label"),
        ("add.s32 %r20, !%r2, 1;", "negated operand"),
        ("ld.global.u32 %r20, [%d4*2];", "is not understood"),
        (".reg .q32 %q<2>;", "registers of type 'q32' are not known"),
        (".branchtargets a, b;", "the directive '.branchtargets' is not supported"),
        ("@%r2 bra L; L:", "'%r2' is not a predicate"),
        ("+;", "is not understood"),
        ("add.s32 %r20, %r2, ?;", "is not understood"),
    ],
)
def test_what_is_not_understood_is_said_with_its_line(statement, said):
    code = text(statement)
    with pytest.raises(PtxError, match=said) as caught:
        parse(code)
    assert f"line {line_of(code, statement)}:" in str(caught.value)
    assert isinstance(caught.value, GemmError)


def test_a_kernel_that_calls_or_has_no_body():
    with pytest.raises(PtxError, match="an entry without a body"):
        parse(".entry e()")
    with pytest.raises(PtxError, match=r"the directive \.reqnctapercluster of an entry"):
        parse(".entry e()\n.reqnctapercluster 2\n{ ret; }")


# Invalid text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "{" * 5000 + "}" * 5000, "add.s32 %r20, " + "{" * 5000 + "%r2" + "}" * 5000 + ", 1;",
        "ld.global.u32 %r20, " + "[" * 5000 + "%d4" + "]" * 5000 + ";", "mov.b32 %r20, {%h1, };",
        "add.s32 %r20, %r2, " + "[ " * 100_000 + ";", "add.s32 %r20, %r2, " + "9" * 5000 + ";",
        "add.s32 %r20, %r2, 18446744073709551616;", "add.s32 %r20, %r2, 089;",
        "ld.global.u32 %r20, [%d4+99999999999];", "ld.global.u32 %r20, [%d4+4+4];",
        ".shared .align 0 .b8 more[4];", ".shared .align 4 .b8 more[" + "9" * 5000 + "];",
        ".shared .align 4 .b8 more[9999999999999];", ".reg;", "@%p1;", "@ ;", "add;", "bar;",
        "bar.warp.sync;", "bar.red.and.pred;", "bra;", "cvt.u32;", "cvta.u64 %d20;",
        "ld.global.u32 %r20;", "ld.param.u32;", "st.global.u32 [%d4];", "mov.b32 %r20;",
        "shfl.sync.bfly.b32 %r20;", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20};",
        "prmt.b32 %r20, %r2, %r3, 30212, %r4;", "shl.b32 %r20, %r2, 0d7FF0000000000000;",
        "mma.sync;", "mbarrier.init.shared.b64 [space];",
        "mbarrier.try_wait.parity.shared.b64 %p1;", "elect.sync;", "cp.async.bulk.tensor.2d;",
        "cp.async.ca.shared.global [space], [%d4], 0;", "atom.global.add.u32 %r20;",
        "wgmma.mma_async.sync.aligned;",
    ],
    ids=lambda statement: statement[:48],
)  # fmt: skip
def test_a_statement_that_no_compiler_writes_is_refused_in_one_sentence(statement):
    code = text(statement)
    with pytest.raises(PtxError) as caught:
        launch(code, np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    said = str(caught.value)
    assert said.startswith(f"line {line_of(code, statement)}: ")
    assert len(said) < 300 and "\n" not in said


@pytest.mark.parametrize("part", ["/*" * 5000, "a: " * 5000, "$" * 19_000, "%r" + "1" * 9000 + ";"])
def test_long_texts_are_refused_soon(part):
    code = text(part)
    with pytest.raises(PtxError):
        launch(code.replace("ret;", ""), np.zeros(32, np.uint32), np.zeros(32, np.uint32))


def mutated(code, rng):
    """Return PTX in which part of the entry is deleted, repeated, moved or replaced."""
    head, body = code.split(".entry", 1)
    lines = body.split("\n")
    ends = [at for at, line in enumerate(lines) if line.rstrip().endswith(";")]
    at, other = rng.choice(ends), rng.choice(ends)
    line, words = lines[at], r"[\w%.$]+|\S"
    parts = re.findall(rf"{words}|\s+", line)
    operands = line.rstrip(";").split(",")
    del operands[rng.randrange(len(operands))]
    parts[rng.randrange(len(parts))] = rng.choice(re.findall(words, lines[other]))
    opened, closed = rng.choice(["()", "{}", "[]"])
    nested = opened * rng.choice([1, 2, 3000]) + line.strip(" \t;") + closed * rng.choice([1, 3000])
    number = rng.choice(["9" * 5000, "-" + "9" * 30, "0x" + "f" * 20, "1e999", "-1", "4294967295"])
    dots = line.split(".")
    del dots[rng.randrange(len(dots))]
    lines[at] = rng.choice(
        ["", line + line, lines[other], ",".join(operands) + ";", "".join(parts), nested + ";",
         re.sub(r"\b\d+", number, line, count=1), ".".join(dots), line.replace(";", "")]
    )  # fmt: skip
    return f"{head}.entry" + "\n".join(lines[: at if rng.random() < 0.05 else len(lines)])


@pytest.mark.parametrize(
    ("kernel", "type_", "arch"),
    [("naive", "float32", "sm_80"), ("smem_tiled", "float16", "sm_80"),
     ("sm80_pipeline", "float16", "sm_80"), ("sm90_wgmma", "float16", "sm_90a")],
)  # fmt: skip
def test_mutated_kernels_are_refused_or_at_fault_in_one_sentence(kernel, type_, arch):
    A, B, C = (np.ones((24, 24), type_) for _ in range(3))
    made = plan("TN", A, B, C, kernel=kernel, arch=arch, backend="interpreter")
    rng, code = random.Random(0), made.ptx
    ends = Counter()
    for _ in range(25):
        made.steps.each[0].__dict__["ptx"] = mutated(code, rng)
        try:
            execute(made, A, B, C.copy(), most_steps=20_000)
            ends["done"] += 1
        except (PtxError, FaultError) as error:
            ends[type(error)] += 1
            said = str(error)
            assert ("line " in said or "instructions" in said) and "\n" not in said, said
    assert ends[PtxError] > 6
