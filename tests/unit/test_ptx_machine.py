"""Test divergence, barriers, asynchronous copies, recorded accesses, and faults."""

import numpy as np
import pytest
from ptx_text import launch, text

from cute_gemm.errors import FaultError, GemmError
from cute_gemm.ptx import Buffer, run
from cute_gemm.ptx.memory import GlobalMemory

LANES = np.arange(64, dtype=np.uint32)
NOTHING = np.zeros(64, np.uint32)


# Control flow -------------------------------------------------------------------------------------


def test_loops_that_end_at_other_times_in_each_lane():
    """Test steps of the Collatz sequence: a branch in a loop, and trip counts that differ."""
    body = """ld.global.u32 %r20, [%d4]; mov.u32 %r21, 0;
    LOOP: setp.le.u32 %p1, %r20, 1; @%p1 bra DONE;
    and.b32 %r22, %r20, 1; setp.eq.b32 %p2, %r22, 0; @%p2 bra EVEN;
    mad.lo.s32 %r20, %r20, 3, 1; bra.uni NEXT;
    EVEN: shr.u32 %r20, %r20, 1;
    NEXT: add.s32 %r21, %r21, 1; bra LOOP;
    DONE: st.global.u32 [%d5], %r21;"""

    def steps(n):
        count = 0
        while n > 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count

    given = np.arange(512, dtype=np.uint32)
    for grid in (1, 4):
        got = launch(text(body), given, np.zeros(512, np.uint32), grid=grid, lanes=256)
        assert got.tolist() == [steps(n) for n in range(512)]


def test_lanes_that_end_leave_the_others_alone():
    body = """mov.u32 %r20, 5; setp.gt.u32 %p1, %r2, 9; @%p1 ret; and.b32 %r21, %r2, 1;
    setp.eq.b32 %p2, %r21, 0; @%p2 mov.u32 %r20, %r2; @!%p2 add.s32 %r20, %r20, %r2;
    st.global.u32 [%d5], %r20;"""
    got = launch(text(body), LANES, NOTHING)
    assert got[:10].tolist() == [0, 6, 2, 8, 4, 10, 6, 12, 8, 14] and not got[10:].any()


def test_ctas_that_go_apart():
    body = """mov.u32 %r20, 0; mov.u32 %r21, 0;
    LOOP: setp.ge.u32 %p1, %r21, %r4; @%p1 bra DONE; add.s32 %r20, %r20, %r5;
    add.s32 %r21, %r21, 1; bar.sync 0; bra LOOP; DONE: st.global.u32 [%d5], %r20;"""
    for lanes in (8, 24, 16384):
        got = launch(text(body), LANES, NOTHING, grid=8, lanes=lanes)
        assert got.tolist() == [i * (i // 8) for i in range(64)]


def test_a_register_keeps_what_a_lane_had_through_the_other_ways():
    body = """setp.lt.u32 %p1, %r2, 7; mov.u32 %r20, 1; @%p1 bra A; mov.u32 %r20, %r2;
    mov.u32 %r30, 9; bra.uni B; A: mov.u32 %r21, 100; add.s32 %r20, %r20, %r21;
    B: st.global.u32 [%d5], %r20;"""
    got = launch(text(body), LANES, NOTHING)
    assert got.tolist() == [101] * 7 + list(range(7, 64))


def test_threads_and_ctas_of_three_dimensions():
    names = ("%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%laneid")
    moves = "".join(f"mov.u32 %r{20 + i}, {name};" for i, name in enumerate(names))
    code = text(f"""{moves} mov.u32 %r30, %nctaid.x; mov.u32 %r31, %ntid.y;
    mad.lo.s32 %r40, %r25, 2, %r24; mad.lo.s32 %r40, %r40, 3, %r23;
    mad.lo.s32 %r41, %r22, 2, %r21; mad.lo.s32 %r41, %r41, 4, %r20;
    mad.lo.s32 %r42, %r40, 24, %r41; mul.wide.s32 %d20, %r42, 4; add.s64 %d20, %d2, %d20;
    mad.lo.s32 %r43, %r30, 10, %r31; mad.lo.s32 %r43, %r43, 100, %r26;
    st.global.u32 [%d20], %r43;""")
    out = np.zeros((12, 24), np.uint32)
    run(code, "k", (3, 2, 2), (4, 2, 3), 0, [Buffer(out.copy(), "in"), Buffer(out, "out"), 0])
    assert (out == 3200 + np.arange(24)).all()


def test_barriers_and_shared_memory_of_each_cta():
    body = """st.shared.u32 [%r8], %r5; bar.sync 0; xor.b32 %r20, %r6, 12; add.s32 %r20, %r20, %r7;
    ld.shared.u32 %r21, [%r20]; st.global.u32 [%d5], %r21;"""
    got = launch(text(body), LANES, NOTHING, grid=4)
    assert (got == (LANES ^ 3)).all()


def test_a_barrier_that_reduces():
    body = """ld.global.u32 %r20, [%d4]; setp.ne.b32 %p1, %r20, 0; bar.red.and.pred %p2, 0, %p1;
    bar.red.or.pred %p3, 0, %p1; selp.u32 %r21, 1, 0, %p2; selp.u32 %r22, 2, 0, %p3;
    add.s32 %r21, %r21, %r22; st.global.u32 [%d5], %r21;"""
    given = np.repeat([1, 0, 1, 0], 16).astype(np.uint32)
    given[20] = 1
    got = launch(text(body), given, NOTHING, grid=4)
    assert got.reshape(4, 16).tolist() == [[3] * 16, [2] * 16, [3] * 16, [0] * 16]


# Asynchronous copies ------------------------------------------------------------------------------

COPY = "cp.async.ca.shared.global [%r8], [%d4], 4; cp.async.commit_group;"
READ = "ld.shared.u32 %r21, [%r8]; st.global.u32 [%d5], %r21;"


def test_a_copy_lands_when_it_is_waited_for():
    body = f"st.shared.u32 [%r8], 77; {COPY} WAIT; {READ}"
    waited = launch(
        text(body.replace("WAIT", "cp.async.wait_group 0")), LANES, NOTHING, watch=False
    )
    assert (waited == LANES).all()
    waited = launch(text(body.replace("WAIT", "cp.async.wait_all")), LANES, NOTHING, watch=False)
    assert (waited == LANES).all()
    for missing in ("bar.sync 0", "cp.async.wait_group 1"):
        early = launch(text(body.replace("WAIT", missing)), LANES, NOTHING, watch=False)
        assert (early == 77).all()
        with pytest.raises(FaultError, match="asynchronous copy, not waited for") as caught:
            launch(text(body.replace("WAIT", missing)), LANES, NOTHING)
        assert caught.value.kind == "in flight"


def test_groups_of_lanes_that_commit_differently():
    """Test lanes that commit twice: waiting for all but one group completes their first copy."""
    body = """st.shared.u32 [%r8], 77; st.shared.u32 [%r8+1024], 78;
    cp.async.ca.shared.global [%r8], [%d4], 4; cp.async.commit_group;
    setp.lt.u32 %p1, %r2, 32; @%p1 bra LAST;
    cp.async.ca.shared.global [%r8+1024], [%d4], 4; cp.async.commit_group;
    LAST: cp.async.wait_group 1; ld.shared.u32 %r20, [%r8]; ld.shared.u32 %r21, [%r8+1024];
    mad.lo.s32 %r20, %r20, 1000, %r21; st.global.u32 [%d5], %r20;"""
    got = launch(text(body), LANES, NOTHING, watch=False)
    assert (got == np.where(LANES < 32, 77078, LANES * 1000 + 78)).all()


def test_a_copy_of_fewer_bytes_fills_with_zeros_and_reads_no_more():
    body = """and.b32 %r20, %r2, 15; min.u32 %r20, %r20, 8; mul.lo.s32 %r21, %r2, 8;
    add.s32 %r21, %r21, %r7; st.shared.v2.u32 [%r21], {7, 7};
    cp.async.ca.shared.global [%r21], [%d4], 8, %r20; cp.async.wait_all;
    ld.shared.v2.u32 {%r22, %r23}, [%r21]; st.global.v2.u32 [%d5], {%r22, %r23};"""
    given = np.random.default_rng(0).integers(0, 256, (17, 8), dtype=np.uint8)
    given[16] = 99
    got = launch(text(body, step=8), given[:16], np.zeros((16, 8), np.uint8), block=16)
    for lane in range(16):
        size = min(lane, 8)
        assert got[lane, :size].tolist() == given[lane, :size].tolist()
        assert not got[lane, size:].any()
    # With one more lane: its bytes are after the buffer, but with size 0 it does not read them.
    code = text(body.replace("min.u32", "setp.lt.u32 %p1, %r2, 16; @!%p1 mov.u32 %r20, 0; min.u32"),
                step=8)  # fmt: skip
    launch(code, given[:16], np.zeros((17, 8), np.uint8), block=17)
    with pytest.raises(FaultError, match="out of bounds: 1 bytes after the end of in"):
        launch(code.replace("mov.u32 %r20, 0", "mov.u32 %r20, 3"), given[:16],
               np.zeros((17, 8), np.uint8), block=17)  # fmt: skip


# Faults -------------------------------------------------------------------------------------------

#: kind -> (body, the instruction in the message, thread, other text of the message)
FAULTS = {
    "out of bounds": (
        "setp.eq.s32 %p1, %r2, 41; @%p1 add.s64 %d4, %d4, 92; ld.global.u32 %r20, [%d4];"
        "st.global.u32 [%d5], %r20;",
        "ld.global.u32", 41, "at address 0x.*: out of bounds: 1 bytes after the end of in",
    ),
    "out of bounds, before": (
        "st.global.u32 [%d5+-8], %r2;", "st.global.u32", 0, "out of bounds: 8 bytes before out",
    ),
    "out of bounds, nowhere": (
        "ld.global.u32 %r20, [%d3];", "ld.global.u32", 0, "far from every buffer",
    ),
    "out of bounds, shared": (
        "st.shared.u32 [%r8+4000], %r2;", "st.shared.u32", 24, "has 4096 bytes of shared memory",
    ),
    "misaligned": (
        "add.s64 %d4, %d4, 2; ld.global.u32 %r20, [%d4];", "ld.global.u32", 0,
        "misaligned: 4 bytes need a multiple of 4",
    ),
    "misaligned, vector": (
        "st.shared.v4.u32 [%r8], {%r2, %r2, %r2, %r2};", "st.shared", 1, "a multiple of 16",
    ),
    "uninitialised": (
        "ld.shared.u32 %r20, [%r8]; add.s32 %r20, %r20, 1; st.global.u32 [%d5], %r20;",
        "st.global.u32", 0, "the stored value depends on .*shared memory that no thread has set",
    ),
    "uninitialised, some": (
        "setp.lt.u32 %p1, %r2, 50; @%p1 st.shared.u32 [%r8], 1; bar.sync 0;"
        "ld.shared.u32 %r20, [%r8]; mov.u32 %r21, %r20; setp.eq.s32 %p2, %r21, 0;"
        "@%p2 bra L; st.global.u32 [%d5], 0; L:",
        "@%p2 bra L", 50, "the branch depends on",
    ),
    "uninitialised, register": (
        "setp.lt.u32 %p1, %r2, 50; @%p1 mov.u32 %r20, 3; st.global.u32 [%d5], %r20;",
        "st.global.u32", 50, "depends on a register",
    ),
    "uninitialised, address": (
        "setp.lt.u32 %p1, %r2, 50; @%p1 mov.u32 %r20, %r8; ld.shared.u32 %r21, [%r20];",
        "ld.shared.u32", 50, "its address depends on a register",
    ),
    "race": (
        "st.shared.u32 [%r8], %r2; xor.b32 %r20, %r6, 4; add.s32 %r20, %r20, %r7;"
        "ld.shared.u32 %r21, [%r20];", "ld.shared.u32", 0, "without a barrier in between",
    ),
    "race, write after read": (
        "st.shared.u32 [%r8], %r2; bar.sync 0; xor.b32 %r20, %r6, 4; add.s32 %r20, %r20, %r7;"
        "ld.shared.u32 %r21, [%r20]; st.shared.u32 [%r8], 8;", "st.shared.u32 [%r8], 8", 0,
        "without a barrier in between",
    ),
    "race, of several readers": (
        "st.shared.u32 [%r8], %r2; bar.sync 0; ld.shared.u32 %r20, [space]; bar.sync 0;"
        "ld.shared.u32 %r20, [space]; setp.eq.s32 %p1, %r2, 63; @%p1 st.shared.u32 [space], %r2;",
        "@%p1 st.shared.u32 [space]", 63, "without a barrier in between",
    ),
    "race, read again by its writer": (
        "st.shared.u32 [%r8], %r2; bar.sync 0; xor.b32 %r20, %r6, 4; add.s32 %r20, %r20, %r7;"
        "ld.shared.u32 %r21, [%r20]; ld.shared.u32 %r22, [%r8]; st.shared.u32 [%r8], 8;",
        "st.shared.u32 [%r8], 8", 0, "without a barrier in between",
    ),
    "race, in another warp": (
        "st.shared.u32 [%r8], %r2; bar.warp.sync -1; xor.b32 %r20, %r6, 128;"
        "add.s32 %r20, %r20, %r7; ld.shared.u32 %r21, [%r20];", "ld.shared.u32", 0,
        "without a barrier in between",
    ),
    "race, in a warp, of a lane that has not come": (
        "st.shared.u32 [%r8], %r2; setp.ge.u32 %p1, %r2, 2; @%p1 bra L; bar.warp.sync 3;"
        "xor.b32 %r20, %r6, 8; add.s32 %r20, %r20, %r7; ld.shared.u32 %r21, [%r20]; L:",
        "ld.shared.u32", 0, "without a barrier in between",
    ),
    "race, of several readers in a warp": (
        "st.shared.u32 [%r8], %r2; bar.sync 0; ld.shared.u32 %r20, [space]; bar.warp.sync -1;"
        "setp.eq.s32 %p1, %r2, 5; ld.shared.u32 %r20, [space];"
        "@%p1 st.shared.u32 [space], %r2;", "@%p1 st.shared.u32 [space]", 5,
        "without a barrier in between",
    ),
    "divergent, a warp's barrier": (
        "bar.warp.sync 65535;", "bar.warp.sync", 16, "does not name the lane itself",
    ),
    "race, two writers": (
        "and.b32 %r20, %r6, 15; add.s32 %r20, %r20, %r7; st.shared.u32 [%r20], %r2;",
        "st.shared.u32", 0, "another thread wrote or read",
    ),
    "barrier, two": (
        "setp.lt.u32 %p1, %r2, 40; @%p1 bra L; bar.sync 0; bra M; L: add.s32 %r20, %r2, 1;"
        "bar.sync  0; M: st.global.u32 [%d5], 1;", "bar.sync", 0, "it waits at line",
    ),
    "divergent, ldmatrix": (
        "st.shared.u32 [%r8], %r2; bar.sync 0; setp.lt.u32 %p1, %r2, 40; mov.u32 %r21, %r7;"
        "@%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r21];", "@%p1 ldmatrix", 40,
        "this thread of the warp does not execute it",
    ),
    "in flight": (
        f"{COPY} st.shared.u32 [%r8], 3;", "st.shared.u32", 0, "asynchronous copy, not waited for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_name_the_instruction_the_cta_the_thread_and_the_address(kind):
    body, part, thread, said = FAULTS[kind]
    body = body.replace(";", ";\n")
    code = text(body)
    with pytest.raises(FaultError, match=said) as caught:
        launch(code, LANES, NOTHING)
    assert caught.value.kind == kind.split(",")[0] and isinstance(caught.value, GemmError)
    line = code[: code.index(body) + body.index(part)].count("\n") + 1
    assert caught.value.line == line
    assert f"line {line}: " in str(caught.value)
    assert f"CTA (0, 0, 0), thread {thread}" in str(caught.value)


def test_a_shuffle_with_lanes_that_do_not_come():
    body = """setp.lt.u32 %p1, %r2, 40; @%p1 bra L; bra M;
    L: shfl.sync.down.b32 %r20, %r2, 1, 31, -1; M:"""
    with pytest.raises(FaultError, match="names lanes that do not execute it") as caught:
        launch(text(body), LANES, NOTHING)
    assert caught.value.kind == "divergent" and "thread 32" in str(caught.value)
    launch(text(body.replace("40", "32")), LANES, NOTHING)


def test_the_cta_of_a_fault():
    body = "setp.eq.s32 %p1, %r5, 61; @%p1 add.s64 %d5, %d5, 8192; st.global.u32 [%d5], 1;"
    for lanes in (8, 16384):
        with pytest.raises(FaultError, match=r"CTA \(7, 0, 0\), thread 5 at address 0x"):
            launch(text(body), LANES, NOTHING, grid=8, lanes=lanes)


def test_waits_that_never_end():
    code = text("L: ld.global.u32 %r20, [%d4]; setp.ne.b32 %p1, %r20, 9999; @%p1 bra L;")
    with pytest.raises(FaultError, match="has not ended after 1,000 instructions") as caught:
        launch(code, LANES, NOTHING, most_steps=1000)
    assert caught.value.kind == "endless"


@pytest.mark.parametrize("other", ["bar.warp.sync 1; bar.sync 0;", "bar.warp.sync 3;"])
def test_waits_that_some_lanes_never_come_to(other):
    code = text(f"setp.eq.u32 %p1, %r2, 0; @%p1 bra A; bar.warp.sync -1; bra L; A: {other} L:")
    with pytest.raises(FaultError, match="a wait that never ends: .*bar.warp.sync -1") as caught:
        launch(code, LANES[:32], NOTHING[:32])
    assert caught.value.kind == "deadlock"


def test_a_loop_of_which_nothing_comes_is_told_from_one_that_goes_on(monkeypatch):
    """Test two loops of equal length: one reads the same address again, the other the next one."""
    monkeypatch.setattr("cute_gemm.ptx.machine.IDLE_STEPS", 5_000)
    loop = """mov.u32 %r20, 0; mov.u64 %d20, %d1; L: ld.volatile.global.u32 %r21, [%d20]; STEP
    add.s32 %r20, %r20, 1; setp.lt.u32 %p1, %r20, 1300; @%p1 bra L;"""
    with pytest.raises(FaultError, match="no thread has stored anything, passed a barr") as caught:
        launch(text(loop.replace("STEP", "")), LANES, NOTHING)
    assert caught.value.kind == "endless"
    launch(text(loop.replace("STEP", "")), LANES, NOTHING, most_steps=10**5)
    on = "and.b32 %r22, %r20, 31; mul.wide.s32 %d21, %r22, 4; add.s64 %d20, %d1, %d21;"
    launch(text(loop.replace("STEP", on)), LANES, NOTHING)


#: Lanes of a warp exchange values, three times.
EXCHANGED = "".join(
    f"""st.shared.u32 [%r8], %r2; bar.warp.sync MASK; xor.b32 %r20, %r6, {4 << step};
    add.s32 %r20, %r20, %r7; ld.shared.u32 %r2, [%r20]; bar.warp.sync MASK;"""
    for step in range(3)
)


@pytest.mark.parametrize("lanes", [32, 64, 24])
def test_lanes_of_a_warp_that_wait_for_each_other(lanes):
    body = EXCHANGED.replace("MASK", "-1") + "st.global.u32 [%d5], %r2;"
    for ctas in (1, 3):
        got = launch(text(body), np.tile(LANES[:lanes], ctas), np.zeros(lanes * ctas, np.uint32),
                     grid=ctas)  # fmt: skip
        assert got.tolist() == (LANES[:lanes] ^ 7).tolist() * ctas
    with pytest.raises(FaultError, match="race"):
        launch(text(body.replace("bar.warp.sync -1;", "", 1)), LANES, NOTHING)


def test_halves_of_a_warp_that_wait_apart_and_then_together():
    """Test halves that wait at two instructions with their own masks, and then together."""
    body = f"""setp.ge.u32 %p1, %r2, 16; @%p1 bra B; {EXCHANGED.replace("MASK", "65535")}
    bar.warp.sync -1; bra C; B: {EXCHANGED.replace("MASK", "-65536")} bar.warp.sync -1;
    C: st.shared.u32 [%r8], %r2; bar.warp.sync -1; xor.b32 %r20, %r6, 64;
    add.s32 %r20, %r20, %r7; ld.shared.u32 %r2, [%r20]; st.global.u32 [%d5], %r2;"""
    got = launch(text(body), LANES[:32], NOTHING[:32])
    assert got.tolist() == (LANES[:32] ^ 23).tolist()


@pytest.mark.parametrize("ended", [40, 32, 1])
def test_threads_that_have_ended_are_not_waited_for(ended):
    """Test ``bar.sync``, ``bar.red`` and ``bar.warp.sync``, also with lanes that run one by one."""
    body = f"""setp.ge.u32 %p1, %r2, {ended}; @%p1 ret; st.shared.u32 [%r8], %r2; bar.sync 0;
    ld.shared.u32 %r20, [space+{4 * (ended - 1)}]; bar.warp.sync -1; REDUCE
    selp.u32 %r20, %r20, 99, %p3; st.global.u32 [%d5], %r20;"""
    reduce = "setp.lt.u32 %p2, %r2, 64; bar.red.and.pred %p3, 0, %p2;"
    one_by_one = "elect.sync _|%p4, -1; setp.eq.u32 %p3, %r2, %r2;"
    for how in (reduce, one_by_one):
        got = launch(text(body.replace("REDUCE", how)), LANES, NOTHING)
        assert got.tolist() == [ended - 1] * ended + [0] * (64 - ended)


@pytest.mark.parametrize(
    "body",
    [
        # Undefined values are read but have no effect.
        "ld.shared.u32 %r20, [%r8]; mul.lo.s32 %r21, %r20, 3; st.shared.u32 [%r8], %r21;",
        "setp.lt.u32 %p1, %r2, 9; ld.shared.u32 %r20, [%r8]; selp.b32 %r20, %r2, 5, %p1;"
        "st.global.u32 [%d5], %r20;",
        # Only the defined half of a word is used.
        "st.shared.u16 [%r8+2], %r2; ld.shared.u32 %r20, [%r8]; shr.u32 %r20, %r20, 16;"
        "st.global.u32 [%d5], %r20;",
        "st.shared.u16 [%r8], %r2; ld.shared.u32 %r20, [%r8]; and.b32 %r20, %r20, 65535;"
        "st.global.u32 [%d5], %r20;",
        "st.shared.u16 [%r8], %r2; ld.shared.u32 %r20, [%r8]; mov.b32 {%h1, %h2}, %r20;"
        "cvt.u32.u16 %r21, %h1; st.global.u32 [%d5], %r21;",
        # A thread accesses its own bytes, and those of others after a barrier.
        "st.shared.u32 [%r8], %r2; ld.shared.u32 %r20, [%r8]; st.shared.u32 [%r8], 5;"
        "bar.sync 0; xor.b32 %r21, %r6, 4; add.s32 %r21, %r21, %r7; ld.shared.u32 %r20, [%r21];"
        "st.global.u32 [%d5], %r20;",
        "st.shared.u8 [%r8], 1; bar.sync 0; ld.shared.u8 %r20, [space]; st.global.u32 [%d5], %r20;",
    ],
)
def test_what_is_no_fault(body):
    launch(text(body), LANES, NOTHING)


def test_elements_alone_are_written_and_what_is_between_may_be_read():
    whole = np.arange(64 * 4, dtype=np.uint32)
    steps = """mul.lo.s32 %r20, %r2, 16; cvt.u64.u32 %d20, %r20; add.s64 %d20, %d20, %d2;
    ld.global.u32 %r21, [%d20+4]; st.global.u32 [%d20], %r21;"""
    target = whole.copy()[::4]
    run(text(steps), "k", (1,), (63,), 0, [0, Buffer(target, "C"), 0])
    assert target[63] == 252 and (target[:63] == 0xFFFFFFFF).all()
    with pytest.raises(FaultError, match="4 of C, between its elements"):
        run(text(steps.replace("st.global.u32 [%d20]", "st.global.u32 [%d20+4]")), "k", (1,), (63,),
            0, [0, Buffer(target, "C"), 0])  # fmt: skip


def test_addresses_are_as_aligned_as_asked_for():
    body = "cvt.u32.u64 %r20, %d5; st.global.u32 [%d5], %r20;"
    for residue in (0, 4, 12, 128):
        out = NOTHING.copy()
        run(text(body), "k", (1,), (64,), 0, [Buffer(LANES, "in"), Buffer(out, "out", residue), 0])
        assert (out % 256 == (residue + 4 * LANES) % 256).all()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("st.shared.u32 [space+4096], %r2;", "1 bytes after the end of space"),
        ("st.shared.u8 [other+-2], %r2;", "2 bytes before other"),
        ("mov.u32 %r20, other; add.s32 %r20, %r20, %r6; st.shared.u32 [%r20], %r2;",
         "thread 16 .* 1 bytes after the end of other"),
        ("ld.shared.u32 %r20, [rest+96];", "1 bytes after the end of rest"),
    ],
)  # fmt: skip
def test_an_array_is_not_the_next_one(body, said):
    """Test adjacent arrays: ``space``, ``other``, and a dynamic one."""
    arrays = ".shared .align 4 .b8 other[64];\n.extern .shared .align 16 .b8 rest[];\n"
    fill = "st.shared.u32 [other], %r2; st.shared.u32 [rest], %r2; setp.eq.u32 %p1, %r2, 0;"
    code = text(arrays + f"setp.eq.u32 %p1, %r2, 0; {fill.replace('st.', '@%p1 st.')} {body}")
    arguments = [Buffer(LANES, "in"), Buffer(NOTHING.copy(), "out"), np.uint32(0)]
    with pytest.raises(FaultError, match=f"out of bounds: .*{said}|{said}") as caught:
        run(code, "k", (1,), (64,), 96, arguments)
    assert caught.value.kind == "out of bounds"
    run(code.replace(body, ""), "k", (1,), (64,), 96, arguments)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("write", [False, True])
def test_the_last_byte_of_a_buffer_is_the_last_that_may_be_accessed(width, write):
    """Test buffers of any size: a byte before the buffer and one after it are out of bounds."""
    for whole in (True, False):
        memory = GlobalMemory({"C": (32 + width, 0, whole), "other": (8, 0, True)})
        memory.writable("C")[...] = 255
        region = memory.region("C")
        assert region.end - region.begin == 32 + width
        at = np.array([region.begin, region.end - width])
        assert not memory.forbidden(at, width, write).any()
        outside = np.array([region.begin - width, region.end, region.end - width + 1])
        assert memory.forbidden(outside, width, write)[:2].all()
        assert memory.forbidden(outside[2:], width, False).all()
        low, high = region.begin, region.end
        assert memory.inside(low, high, False) and memory.inside(low, high, write) == (
            whole or not write
        )
        assert not memory.inside(low - 1, high, False) and not memory.inside(low, high + 1, False)


@pytest.mark.parametrize(
    "body",
    ["ld.global.u8 %r20, [%d20];", "st.global.u8 [%d20], %r2;",
     "add.u32 %r21, %r7, 64; st.shared.u8 [%r21], %r2;"],
)  # fmt: skip
def test_one_byte_too_far(body):
    """Test accesses after buffers of 253 bytes, and after an array of 64 bytes."""
    arrays = ".shared .align 16 .b8 array[64];\n"
    prologue = arrays + "mov.u32 %r7, array; add.s64 %d20, %d1, {};"
    given = [Buffer(np.zeros(253, np.uint8), "in"), Buffer(NOTHING.copy(), "out"), np.uint32(0)]
    with pytest.raises(FaultError, match="1 bytes after the end of"):
        run(text(prologue.format(253) + body), "k", (1,), (1,), 0, given)


BOTH = "mul.wide.u32 %d20, %r2, 4; add.s64 %d20, %d20, %d2;"


@pytest.mark.parametrize("lanes", [64, 16384])
def test_ctas_that_store_the_same_bytes(lanes):
    """Test equal values too, other widths, and a load of bytes that another CTA stores."""
    for body, blamed in (
        (f"{BOTH} st.global.u32 [%d20], %r2;", "st.global.u32"),
        (f"{BOTH} setp.eq.u32 %p1, %r4, 1; st.global.u32 [%d5], %r2;"
         "@%p1 ld.global.u32 %r20, [%d20];", "@%p1 ld.global.u32"),
        ("setp.eq.u32 %p1, %r4, 0; @%p1 st.global.u8 [%d5+255], 1; "
         "@!%p1 st.global.u32 [%d5+-4], 1;",
         "@!%p1 st.global.u32"),
    ):  # fmt: skip
        with pytest.raises(FaultError, match=r"race: another CTA stores these bytes") as caught:
            launch(text(body), np.tile(LANES, 2), np.zeros(128, np.uint32), grid=2, lanes=lanes)
        assert caught.value.kind == "race" and f": {blamed}" in str(caught.value)
    # CTAs that may wait for each other, and atomics, are not checked.
    launch(text(f"{BOTH} ld.volatile.global.u32 %r20, [%d4]; st.global.u32 [%d20], %r2;"),
           np.tile(LANES, 2), np.zeros(128, np.uint32), grid=2)  # fmt: skip
    launch(text(f"{BOTH} red.global.add.u32 [%d20], %r2;"),
           np.tile(LANES, 2), np.zeros(128, np.uint32), grid=2)  # fmt: skip


# The record ---------------------------------------------------------------------------------------


def test_the_record_has_every_access_of_every_warp():
    body = """setp.lt.u32 %p1, %r2, 33; @!%p1 bra L; ld.global.u32 %r20, [%d4+4];
    L: st.shared.u16 [%r8], %r2; @%p1 st.global.u32 [%d5], %r2;"""
    code = text(body)
    given = np.zeros(128, np.uint32)
    out = np.zeros(128, np.uint32)
    done = run(code, "k", (2,), (64,), 0, [Buffer(given, "in"), Buffer(out, "out"), 0], record=True)
    found, names = done.accesses, ["".join(one.op[:2]) for one in done.kernel.instructions]
    assert found is not None and done.counts is not None
    loads = found.of(found.instruction == names.index("ldglobal"))
    assert loads.cta.tolist() == [0, 0, 1, 1] and loads.warp.tolist() == [0, 1, 0, 1]
    assert loads.lanes.sum(axis=1).tolist() == [32, 1, 32, 1]
    assert (loads.addresses[0] == loads.addresses[0, 0] + 4 * np.arange(32)).all()
    assert (loads.addresses[1, 1:] == -1).all()
    assert loads.addresses[2, 0] == loads.addresses[0, 0] + 4 * 64
    stores = found.of(found.instruction == names.index("stshared"))
    assert stores.lanes.all() and stores.shared.all() and stores.store.all()
    assert (loads.width == 4).all() and (stores.width == 2).all() and not loads.shared.any()
    assert stores.lanes.all() and (stores.addresses[1] == 4 * (32 + np.arange(32))).all()
    assert len(found.of(found.instruction == names.index("stglobal"))) == 4
    assert done.counts["ld.global.u32"] == 4 and done.counts["st.shared.u16"] == 4
    assert done.counts["bra"] == 4
    assert len(found) == 12


def test_the_record_of_the_rows_of_ldmatrix():
    body = """st.shared.u32 [%r8], 0; st.shared.u32 [%r8+128], 0; bar.sync 0; and.b32 %r20, %r2, 7;
    mul.lo.s32 %r20, %r20, 16; add.s32 %r20, %r20, %r7;
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r21, %r22}, [%r20];"""
    done = run(text(body), "k", (1,), (32,), 0, [0, 0, 0], record=True)
    index = [one.op[0] for one in done.kernel.instructions].index("ldmatrix")
    found = done.accesses.of(done.accesses.instruction == index)
    (rows,) = found.addresses
    assert found.shared.all() and found.width == 16 and not found.store.any()
    assert rows[:16].tolist() == [16 * (i % 8) for i in range(16)] and (rows[16:] == -1).all()


def test_the_record_of_a_copy_has_both_ends_and_what_it_does_not_read_is_not_there():
    body = """setp.lt.u32 %p1, %r2, 5; selp.b32 %r20, 4, 0, %p1;
    cp.async.ca.shared.global [%r8], [%d4], 4, %r20; cp.async.wait_all;"""
    given = [Buffer(LANES[:32], "in"), Buffer(NOTHING.copy(), "out"), 0]
    found = run(text(body), "k", (1,), (32,), 0, given, record=True).accesses
    to, source = found.of(found.store), found.of(~found.store)
    assert to.shared.all() and to.lanes.all() and len(to) == 1
    assert not source.shared.any() and source.lanes.tolist() == [[i < 5 for i in range(32)]]
    assert (
        source.addresses[0, :5] % 256 == (LANES[:32].ctypes.data + 4 * np.arange(5)) % 256
    ).all()
