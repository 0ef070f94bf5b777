"""Test Hopper's instructions in the interpreter: TMA, mbarriers, clusters, wgmma.

Instructions are tested with short texts and independent formulas. The kernel that consists of them
is executed in ``test_ptx_wgmma.py``.
"""

from typing import Any

import numpy as np
import pytest
from ptx_text import text

from cute_gemm.arch import Arch
from cute_gemm.errors import FaultError, PtxError
from cute_gemm.ptx import Buffer, Execution, TensorMap, run
from cute_gemm.ptx.tensor import Tensor
from cute_gemm.ptx.wgmma import WgmmaOperand, parts
from cute_gemm.report.executed import executed

ARCH = Arch("sm_90a")

# Small texts --------------------------------------------------------------------------------------

#: Bytes of shared memory of the small kernels, and addresses of their barriers.
SPACE, FULL, EMPTY = 32768, 32704, 32712
INIT = f"""setp.ne.u32 %p30, %r2, 0; @%p30 bra MADE;
mbarrier.init.shared::cta.b64 [%r7+{FULL}], 1; mbarrier.init.shared::cta.b64 [%r7+{EMPTY}], 1;
fence.mbarrier_init.release.cluster; MADE: bar.sync 0;"""
#: %r2 waits for the first phase of the full barrier.
WAIT = f"""AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p31, [%r7+{FULL}], 0, 1000;
@%p31 bra DONE; bra AGAIN; DONE:"""
MEET = "bar.warp.sync -1;"
ARRIVE = f"mbarrier.arrive.shared::cta.b64 _, [%r7+{FULL}];"
LOAD = (
    "cp.async.bulk.tensor.{n}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    " [%r7{to}], [%d30, {{{at}}}], [%r7+" + str(FULL) + "];"
)


def small(
    body: str, given: Any, out: Any, *, threads: int = 32, ctas: int = 1, step: int = 4,
    tensor: Tensor | None = None, of: str = "in", **options: Any,
) -> tuple[np.ndarray, Execution]:  # fmt: skip
    """Run a text on arrays. Its third parameter is a tensor map, with its address in %d30."""
    code = text(f"mov.b64 %d29, k_param_2; cvta.param.u64 %d30, %d29;\n{body}", step=step,
                space=SPACE)  # fmt: skip
    code = code.replace(".param .u32 k_param_2", ".param .align 64 .b8 k_param_2[128]")
    code = code.replace("    ld.param.u32 %r1, [k_param_2];\n", "")
    given, out = np.array(given), np.array(out)
    arguments = [Buffer(given, "in", 0), Buffer(out, "out", 0), TensorMap(of, tensor)]
    done = run(code, "k", (ctas,), (threads,), 0, arguments, **options)
    return out, done


def fault(kind: str, body: str, given: Any = 0, out: Any = 0, **options: Any) -> str:
    """Return the message of the fault of a text."""
    if isinstance(given, int):
        given, out = np.zeros(4096, np.uint16), np.zeros(4096, np.uint32)
    with pytest.raises(FaultError) as caught:
        small(body, given, out, **options)
    assert caught.value.kind == kind, caught.value
    return str(caught.value)


def test_one_lane_is_elected():
    body = """setp.lt.u32 %p1, %r2, 5; mov.u32 %r20, 9; @%p1 bra END; mov.u32 %r20, 0;
    elect.sync %r21|%p2, 0xfffffff0; @%p2 mov.u32 %r20, 1; add.s32 %r20, %r20, %r21;
    END: st.global.u32 [%d5], %r20; setmaxnreg.inc.sync.aligned.u32 240; bar.warp.sync -1;"""
    out, _ = small(body, [0], np.zeros(32, np.uint32))
    assert out.tolist() == [9] * 5 + [6] + [5] * 26


def test_a_producer_and_a_consumer_take_turns():
    """Test two warps that pass four numbers through one address, each waiting by parity."""
    body = f"""{INIT} shr.u32 %r20, %r2, 5; and.b32 %r21, %r2, 31; setp.eq.u32 %p1, %r20, 1;
    mov.u32 %r22, 0; mov.u32 %r24, 0; @%p1 bra CONSUMER;
    P: xor.b32 %r23, %r22, 1; and.b32 %r23, %r23, 1;
    W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r7+{EMPTY}], %r23; @!%p2 bra W;
    mad.lo.s32 %r25, %r22, 100, %r21; shl.b32 %r26, %r21, 2; add.s32 %r26, %r26, %r7;
    st.shared.u32 [%r26], %r25; {MEET} setp.ne.u32 %p3, %r21, 0; @%p3 bra PN; {ARRIVE}
    PN: add.s32 %r22, %r22, 1; setp.lt.u32 %p4, %r22, 4; @%p4 bra P; ret;
    CONSUMER: and.b32 %r23, %r22, 1;
    V: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r7+{FULL}], %r23; @!%p2 bra V;
    shl.b32 %r26, %r21, 2; add.s32 %r26, %r26, %r7; ld.shared.u32 %r25, [%r26];
    mad.lo.s32 %r24, %r24, 3, %r25; {MEET} setp.ne.u32 %p3, %r21, 0; @%p3 bra CN;
    mbarrier.arrive.shared::cta.b64 _, [%r7+{EMPTY}], 1;
    CN: add.s32 %r22, %r22, 1; setp.lt.u32 %p4, %r22, 4; @%p4 bra CONSUMER;
    mul.wide.u32 %d20, %r21, 4; add.s64 %d20, %d2, %d20; st.global.u32 [%d20], %r24;"""
    out, _ = small(body, [0], np.zeros(32, np.uint32), threads=64)
    lane = np.arange(32)
    expected = np.zeros(32, int)
    for turn in range(4):
        expected = expected * 3 + turn * 100 + lane
    assert out.tolist() == expected.tolist()
    # A warp that does not wait is phases ahead, or reads bytes that may not have arrived.
    zeros = [0], np.zeros(32, np.uint32)
    # A lane's arrival releases accesses of lanes that it has met: stores, ...
    assert "thread 33 at address 0x4: race" in fault("race", body.replace(MEET, "", 1), *zeros,
                                                     threads=64)  # fmt: skip
    # ... and loads.
    first, _, rest = body.rpartition(MEET)
    assert "st.shared.u32" in fault("race", first + rest, *zeros, threads=64)
    small(body.replace(MEET, "vote.sync.any.pred %p9, %p2, -1;"), *zeros, threads=64)
    small(body.replace(MEET, "shfl.sync.idx.b32 %r31, %r25, 0, 31, -1;"), *zeros, threads=64)
    fault("deadlock", body.replace("@!%p2 bra W;", ""), *zeros, threads=64)
    fault("deadlock", body.replace("@!%p2 bra V;", ""), *zeros, threads=64)
    begin, end = (
        body.index("V: mbarrier"),
        body.index("shl.b32 %r26, %r21, 2; add.s32 %r26, %r26, %r7; ld"),
    )
    fault("race", body[:begin] + body[end:], *zeros, threads=64)
    # A warp that arrives at the wrong barrier waits for ever, and so does the other.
    said = fault("deadlock", body.replace(ARRIVE, ARRIVE.replace(str(FULL), str(EMPTY))), *zeros,
                 threads=64)  # fmt: skip
    assert f"the barrier at {FULL:#x}, phase 0 (parity 0), lacks 1 of 1 arrivals and 0 b" in said
    assert "CTA (0, 0, 0), warp 1" in said and "parity 0 is waited for" in said


def test_copies_that_arrive_when_they_are_there():
    """Test ``cp.async.mbarrier.arrive.noinc``: lanes copy four bytes each, the last ones zeros."""
    arrive = ARRIVE.replace("mbarrier.arrive", "cp.async.mbarrier.arrive.noinc").replace("_, ", "")
    body = f"""{INIT.replace("], 1;", "], 32;", 1)} shr.u32 %r20, %r2, 5; and.b32 %r21, %r2, 31;
    setp.eq.u32 %p1, %r20, 1; shl.b32 %r26, %r21, 2; add.s32 %r26, %r26, %r7; @%p1 bra CONSUMER;
    mul.wide.u32 %d20, %r21, 4; add.s64 %d20, %d1, %d20; mov.u32 %r22, 4;
    setp.gt.u32 %p3, %r21, 29; @%p3 mov.u32 %r22, 0;
    cp.async.ca.shared.global [%r26], [%d20], 4, %r22; ARRIVES ret;
    CONSUMER: {WAIT} xor.b32 %r26, %r26, 4; ld.shared.u32 %r24, [%r26];
    mul.wide.u32 %d20, %r21, 4; add.s64 %d20, %d2, %d20; st.global.u32 [%d20], %r24;"""
    numbers = np.arange(100, 130, dtype=np.uint32)
    given = numbers, np.zeros(32, np.uint32)
    out, _ = small(body.replace("ARRIVES", arrive), *given, threads=64)
    assert out[np.arange(32) ^ 1].tolist() == [*numbers.tolist(), 0, 0]
    # An immediate arrival does not wait for the copies. Bytes in flight must not be read.
    fault("in flight", body.replace("ARRIVES", ARRIVE), *given, threads=64)
    own = "ld.shared.u32 %r24, [%r26];"
    fault("in flight", body.replace("ARRIVES", own + arrive), *given, threads=64)
    fault("race", body.replace("ARRIVES", arrive).replace(WAIT, ""), *given, threads=64)
    with pytest.raises(PtxError, match="cp.async.mbarrier.arrive"):
        small(body.replace("ARRIVES", arrive.replace(".noinc", "")), *given, threads=64)


def test_lanes_that_arrive_one_by_one():
    """Test that each lane releases its own accesses, and not those of another lane."""
    body = f"""{INIT.replace("], 1;", "], 32;", 1)} shr.u32 %r20, %r2, 5; and.b32 %r21, %r2, 31;
    setp.eq.u32 %p1, %r20, 1; shl.b32 %r26, %r21, 2; add.s32 %r26, %r26, %r7; @%p1 bra CONSUMER;
    st.shared.u32 [%r26], %r21; ARRIVES ret;
    CONSUMER: {WAIT} ld.shared.u32 %r24, [%r26]; st.shared.u32 [%r26], 1;
    mul.wide.u32 %d20, %r21, 4; add.s64 %d20, %d2, %d20; st.global.u32 [%d20], %r24;"""
    given = [0], np.zeros(32, np.uint32)
    out, _ = small(body.replace("ARRIVES", ARRIVE), *given, threads=64)
    assert out.tolist() == list(range(32))
    for one in range(2):
        alone = f"setp.ne.u32 %p3, %r21, {one}; @%p3 bra OUT; {ARRIVE[:-1]}, 32; OUT:"
        said = fault("race", body.replace("ARRIVES", alone), *given, threads=64)
        assert f"thread {33 - one} at address" in said
        small(body.replace("ARRIVES", MEET + alone), *given, threads=64)


def test_barriers_by_name():
    """Test a warp that arrives and continues, and another one that waits."""
    body = """shr.u32 %r20, %r2, 5; setp.eq.u32 %p1, %r20, 1; mov.u32 %r22, 3; @%p1 bra OTHER;
    st.shared.u32 [%r8], %r2; bar.arrive %r22, 64; ret;
    OTHER: bar.sync 3, 64; add.s32 %r21, %r8, -128; ld.shared.u32 %r23, [%r21];
    st.global.u32 [%d5], %r23;"""
    out, _ = small(body, [0], np.zeros(64, np.uint32), threads=64)
    assert out[32:].tolist() == list(range(32))
    zeros = [0], np.zeros(64, np.uint32)
    fault("race", body.replace("bar.sync 3, 64;", ""), *zeros, threads=64)
    said = fault("deadlock", body.replace("sync 3", "sync 4"), *zeros, threads=64)
    assert "bar.sync 4, 64: 32 of 64 threads have arrived (CTA (0, 0, 0), warp 1)" in said
    fault("barrier", body.replace("bar.sync 3, 64;", "bar.sync 3, 32;"), *zeros, threads=64)


#: The second CTA waits until the first has stored a number into the last word of ``out``.
HANDED_OVER = """mov.u32 %r20, %ctaid.x; setp.ne.u32 %p1, %r20, FIRST; @%p1 bra OTHER;
    mbarrier.inval.shared::cta.b64 [%r7+32704];
    setp.ne.u32 %p2, %r2, 0; @%p2 bra END; st.global.u32 [%d2], 5;
    st.release.gpu.global.u32 [%d2+4], 7; ret;
    OTHER: ld.acquire.gpu.global.u32 %r21, [%d2+4]; setp.ne.u32 %p3, %r21, 7; @%p3 bra OTHER;
    ld.global.u32 %r22, [%d2]; mul.wide.u32 %d20, %r2, 4; add.s64 %d20, %d2, %d20;
    st.global.u32 [%d20+8], %r22; END: ret;"""


@pytest.mark.parametrize("first", [0, 1])
def test_a_cta_that_waits_for_another_reads_until_it_has_written(first):
    body = HANDED_OVER.replace("mbarrier.inval", "mbarrier.init").replace("04];", "04], 1;")
    body = body.replace("FIRST", str(first))
    out, done = small(body, [0], np.zeros(34, np.uint32), ctas=2, record=True)
    assert out.tolist() == [5, 7, *[5] * 32]
    # Waits are not recorded as accesses of the kernel.
    kinds = {(kind.instruction, kind.direction) for kind in executed(done)}
    assert kinds == {("ld.global", "load"), ("st.global", "store")}
    said = fault("deadlock", body.replace("st.release.gpu.global.u32 [%d2+4], 7;", ""), [0],
                 np.full(34, 3, np.uint32), ctas=2)  # fmt: skip
    assert "ld.acquire.gpu.global.u32 %r21, [%d2+4]: it reads 0x3 again and again" in said
    assert f"CTA ({1 - first}, 0, 0), warp 0" in said


def test_who_reads_the_same_twice_need_not_wait():
    body = """mov.u32 %r20, 0; mov.u32 %r22, 0; setp.ne.u32 %p1, %r2, 0;
    @!%p1 mbarrier.init.shared::cta.b64 [%r7+32704], 1;
    MORE: ld.acquire.gpu.global.u32 %r21, [%d1]; add.u32 %r20, %r20, %r21;
    add.u32 %r22, %r22, 1; setp.lt.u32 %p3, %r22, 3; @%p3 bra MORE; st.global.u32 [%d5], %r20;"""
    out, _ = small(body, np.array([4], np.uint32), np.zeros(32, np.uint32))
    assert out.tolist() == [12] * 32


def test_a_launch_that_may_begin_before_the_one_ahead_has_ended():
    body = "griddepcontrol.wait; ld.global.u32 %r20, [%d4]; st.global.u32 [%d5], %r20;"
    numbers = np.arange(32, dtype=np.uint32)
    early = body.replace("griddepcontrol.wait;", "griddepcontrol.launch_dependents;")
    for code, dependent in ((body, True), (body, False), (early, False)):
        out, _ = small(code, numbers, 0 * numbers, dependent=dependent)
        assert np.array_equal(out, numbers)
    said = fault("race", early, numbers, 0 * numbers, dependent=True)
    assert "ld.global.u32" in said and "no griddepcontrol.wait before" in said


def test_what_mbarriers_do_not_take():
    fault("uninitialised", ARRIVE)
    fault("barrier", INIT + ARRIVE.replace("];", "], 2;"))
    fault("misaligned", INIT + ARRIVE.replace(str(FULL), str(FULL + 4)))
    fault("out of bounds", INIT + ARRIVE.replace(str(FULL), str(SPACE)))
    fault("race", INIT.replace("bar.sync 0;", "") + ARRIVE, threads=64)
    alone = INIT + f"@%p30 bra END; mbarrier.inval.shared::cta.b64 [%r7+{FULL}]; {ARRIVE} END:"
    fault("uninitialised", alone)


# TMA ----------------------------------------------------------------------------------------------


def load(at: str, bytes_: int, count: int = 2, wait: str = WAIT, expect: str = "") -> str:
    """Return a text in which one thread loads a box, and all threads wait for it."""
    told = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7+{FULL}], {expect or bytes_};"
    asked = LOAD.format(n=count, to="", at=at)
    return f"{INIT} @%p30 bra W; {told} {asked} W: {wait}"


def copy_out(count: int, threads: int = 32) -> str:
    """Return stores of each thread's 4 bytes of shared memory, and those 4 * threads further on."""
    return "".join(
        f"ld.shared.u32 %r40, [%r8+{4 * threads * i}]; st.global.u32 [%d5+{4 * threads * i}], %r40;"
        for i in range(count)
    )


@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize("corner", [(0, 0), (16, 5), (-8, -3), (56, 30)])
def test_a_box_comes_swizzled_and_filled_with_zeros(span, corner):
    """Test each swizzle against a table: row r has its 16-byte part c at another position."""
    rows, run = 16, (span or 64) // 2
    matrix = np.random.default_rng(span).integers(1, 60000, (33, 72)).astype(np.uint16)
    tensor = Tensor("float16", (70, 33), (144,), (run, rows), span)
    at = ", ".join(map(str, corner))
    count = rows * run * 2 // 128
    out, _ = small(load(at, rows * run * 2) + copy_out(count), matrix,
                   np.zeros(rows * run // 2, np.uint32), tensor=tensor)  # fmt: skip
    box = np.zeros((rows, run), np.uint16)
    for r in range(rows):
        for c in range(run):
            x, y = corner[0] + c, corner[1] + r
            if 0 <= x < 70 and 0 <= y < 33:
                box[r, c] = matrix[y, x]
    # 1, 2 or 4 rows that share 128 bytes have one pattern; none without a swizzle.
    exchange = {0: lambda r: 0, 32: lambda r: r // 4 % 2, 64: lambda r: r // 2 % 4,
                128: lambda r: r % 8}[span]  # fmt: skip
    expected = np.zeros_like(box)
    for r in range(rows):
        for part in range(run // 8):
            to = (part ^ exchange(r)) * 8
            expected[r, to : to + 8] = box[r, part * 8 : part * 8 + 8]
    assert np.array_equal(out.view(np.uint16).reshape(rows, run), expected)


def test_floats_that_a_map_calls_tf32_are_rounded():
    """Test rounding to nearest, ties to even, as on an H200, with signs and infinities."""
    given = np.array([0x3F801000, 0x3F803000, 0x3F801001, 0x3F800FFF, 0xBF803000, 0x3FFFF000,
                      0x7F800000, 0x40490FDB], np.uint32)  # fmt: skip
    tensor = Tensor("tf32", (8, 1), (32,), (8, 1), 0)
    store = "setp.lt.u32 %p1, %r2, 8; ld.shared.u32 %r40, [%r8]; @%p1 st.global.u32 [%d5], %r40;"
    out, _ = small(load("0, 0", 32) + store, given, np.zeros(8, np.uint32), tensor=tensor)
    assert [hex(x) for x in out.tolist()] == [
        "0x3f800000", "0x3f804000", "0x3f802000", "0x3f800000", "0xbf804000", "0x40000000",
        "0x7f800000", "0x40490000",
    ]  # fmt: skip


def test_boxes_of_four_modes():
    array = np.arange(3 * 4 * 5 * 16, dtype=np.uint16).reshape(3, 4, 5, 16)
    tensor = Tensor("bfloat16", (16, 5, 4, 3), (32, 160, 640), (16, 2, 2, 2), 0)
    out, done = small(load("0, 4, 1, 1", 256, 4) + copy_out(2), array, np.zeros(64, np.uint32),
                      tensor=tensor, record=True)  # fmt: skip
    expected = np.zeros((2, 2, 2, 16), np.uint16)
    expected[:, :, 0] = array[1:3, 1:3, 4]
    assert np.array_equal(out.view(np.uint16).reshape(2, 2, 2, 16), expected)
    assert done.boxes == (("in", False, 1, 4, 128),)  # four rows of 32 bytes are in the tensor


STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d30, {56, 30}], [%r7];"


def stored(body: str, **options: Any) -> np.ndarray:
    """Store thread i's number at byte 4 i of shared memory, and a box of 16 x 4 of it to 'out'."""
    start = "st.shared.u32 [%r8], %r2; setp.ne.u32 %p30, %r2, 0;"
    out, _ = small(f"{start} {body}", [0], np.zeros((33, 144), np.uint16), of="out",
                   tensor=Tensor("float16", (70, 33), (288,), (16, 4), 32), **options)  # fmt: skip
    return out


def test_a_box_goes_where_the_tensor_is_and_nowhere_else():
    rest = f"@%p30 bra E; {STORE} cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; E:"
    good = f"fence.proxy.async.shared::cta; bar.sync 0; {rest}"
    out = stored(good)
    expected = np.zeros((33, 144), np.uint16)
    numbers = np.zeros((4, 16), np.uint16)
    numbers[:, ::2] = np.arange(32).reshape(4, 8)
    expected[30:33, 56:70] = numbers[:3, :14]  # four rows of 32 bytes: one pattern, the identity
    assert np.array_equal(out, expected)
    # The whole box is read: other bytes in flight, or unwritten bytes, are faults.
    for kind, broken in {
        "proxy": good.replace("fence.proxy.async.shared::cta;", ""),
        "in flight": good.replace("cp.async.bulk.wait_group.read 0;", ""),
        "uninitialised": good.replace("[%r7];", "[%r7+128];"),
        "misaligned": good.replace("[%r7];", "[%r7+64];"),
    }.items():
        with pytest.raises(FaultError) as caught:
            stored(broken)
        assert caught.value.kind == kind, caught.value
    with pytest.raises(FaultError, match="begins at byte 120 along") as caught:
        stored(good.replace("{56, 30}", "{60, 30}"))
    assert caught.value.kind == "misaligned"
    over = good.replace("cp.async.bulk.wait_group.read 0;",
                        "st.shared.u32 [%r7+8], %r2; cp.async.bulk.wait_group.read 0;")  # fmt: skip
    with pytest.raises(FaultError, match="a wgmma or a bulk store, not waited for, r") as caught:
        stored(over)
    assert caught.value.kind == "in flight"
    with pytest.raises(FaultError) as caught:  # bytes of another warp, without the barrier
        stored(good.replace("bar.sync 0;", "").replace("[%r7];", "[%r7+128];"), threads=64)
    assert caught.value.kind == "race"


BOX = Tensor("float16", (64, 64), (128,), (64, 8), 128)


def test_copies_that_are_not_waited_for_are_found():
    matrix, out = np.ones((64, 64), np.uint16), np.zeros(256, np.uint32)
    good = load("0, 0", 1024) + copy_out(8)
    assert (small(good, matrix, out, tensor=BOX)[0] == 0x10001).all()
    early = load("0, 0", 1024, wait="") + copy_out(8) + WAIT
    said = fault("in flight", early, matrix, out, tensor=BOX)
    assert "ld.shared.u32" in said and "an asynchronous copy, not waited for" in said
    # A wait outside of a loop is no wait.
    fault("in flight", good.replace("bra AGAIN;", ""), matrix, out, tensor=BOX)
    # Without a wait or a read, the bytes would arrive after the kernel has ended.
    said = fault("in flight", load("0, 0", 1024, wait=""), matrix, out, tensor=BOX)
    assert "the kernel has ended, and no thread has waited for it" in said
    # Without race detection, the old bytes are read.
    plain, _ = small("st.shared.u32 [%r8], 7; " + early, matrix, out, tensor=BOX, watch=False)
    assert (plain[:32] == 7).all()


def test_bytes_that_do_not_add_up():
    matrix, out = np.ones((64, 64), np.uint16), np.zeros(256, np.uint32)
    said = fault("deadlock", load("0, 0", 1024, expect="1040"), matrix, out, tensor=BOX)
    assert "lacks 0 of 1 arrivals and 16 bytes; parity 0 is waited for" in said
    twice = load(
        "0, 0", 1024, expect="1024; " + LOAD.format(n=2, to="+1024", at="0, 8").rstrip(";")
    )
    fault("in flight", twice, matrix, out, tensor=BOX)
    less = load("0, 0", 1024, expect="1008")
    fault("deadlock", less, matrix, out, tensor=BOX)
    more = f"@%p30 bra END; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r7+{FULL}], 48; END:"
    said = fault("transaction", INIT + more)
    assert "lacks 1 of 1 arrivals and 48 bytes: arrivals differ from what was expected" in said


def test_where_boxes_must_not_be():
    matrix, out = np.ones((64, 64), np.uint16), np.zeros(256, np.uint32)
    good = load("0, 0", 1024)
    fault("misaligned", good.replace("[%r7], [%d30", "[%r7+64], [%d30"), matrix, out, tensor=BOX)
    said = fault("misaligned", good.replace("{0, 0}", "{12, 0}"), matrix, out, tensor=BOX)
    assert "byte 24 along the mode whose stride is 1, which is not a multiple of 16" in said
    beyond = good.replace("[%r7], [%d30", f"[%r7+{SPACE - 512}], [%d30")
    fault("out of bounds", beyond, matrix, out, tensor=BOX)
    fault("race", "st.shared.u32 [%r8], 7;" + good.replace("bar.sync 0;", ""), matrix, out,
          tensor=BOX, threads=64)  # fmt: skip
    large = Tensor("float16", (64, 65), (128,), (64, 8), 128)
    said = fault("out of bounds", load("0, 60", 1024), matrix, out, tensor=large)
    assert "the tensor map exceeds in" in said
    no_fence = good.replace("fence.mbarrier_init.release.cluster;", "")
    assert "no fence.mbarrier_init" in fault("race", no_fence, matrix, out, tensor=BOX)
    with pytest.raises(PtxError, match="its tensor map is not a parameter"):
        small(good, matrix, out)


@pytest.mark.parametrize(
    "statement",
    ["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%d4], 64, [%r8];",
     "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
     "[%r7], [%d30, {%r2, %r2, %r2}], [%r8], {%h1};",
     "cp.async.bulk.prefetch.tensor.2d.L2.global [%d30, {%r2, %r2}];",
     "ld.shared::cluster.u32 %r2, [%r7];", "st.shared::cluster.u32 [%r7], %r2;",
     "mbarrier.arrive.shared::cta.b64 %d20, [%r7];", "mbarrier.arrive_drop.b64 _, [%r7];",
     "mbarrier.test_wait.shared::cta.b64 %p1, [%r7], %d20;", "mapa.u64 %d20, %d4, 1;",
     "@%p1 bar.arrive 1, 64;", "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
     "{%f1, %f2, %f3, %f4}, {%r2, %r2, %r2}, %d20, %p1, 1, 1, 0;",
     "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r2, %r3}, %d20, %d21, %p1, 1, 1, 0, 0;",
     "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3 {%r2, %r3}, %d20, %d21, %p1, 1, 1;",
     "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8.satfinite {%r1, %r3, %r5, %r6}, %d20, %d21, "
     "%p1;",
     "wgmma.mma_async.sync.aligned.m64n8k16.f32.tf32.tf32 {%f1, %f2, %f3, %f4}, %d20, %d21, %p1, "
     "1, 1;",
     "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %d20, %d21, %p1, "
     "1, 1, 0, 0;"],
)  # fmt: skip
def test_what_of_hopper_is_refused(statement):
    with pytest.raises(PtxError, match="is not supported by the interpreter"):
        small(f"mov.u64 %d20, 0; mov.u64 %d21, 0; {statement}", [0], [0])


# wgmma --------------------------------------------------------------------------------------------


def image(matrix: np.ndarray, major_k: bool, span: int) -> tuple[bytes, int, int]:
    """Return an operand of 32 bytes along k in CuTe's canonical layout, with its LBO and SBO.

    Blocks have 8 rows (of k, if MN-major) of a span each. Row r has its 16-byte part c at c ^ r,
    c ^ (r / 2) or c ^ (r / 4). Without a swizzle, blocks of 8 x 16 bytes are independent.
    """
    lines = matrix if major_k else matrix.T  # rows along which elements are contiguous
    rows, columns = lines.shape
    side = max(span // 16, 1)
    blocks_down, blocks_across = rows // 8, columns * lines.itemsize // (16 * side)
    each = 16 // lines.itemsize
    found = np.zeros((blocks_across, blocks_down, 8, side, each), lines.dtype)
    if major_k and span:  # the columns of k begin within the span
        found = np.zeros((1, blocks_down, 8, side, each), lines.dtype)
    shift = {0: 8, 32: 4, 64: 2, 128: 1}[span]
    for r in range(rows):
        for part in range(columns // each):
            across, c = divmod(part, side)
            place = c ^ (r % 8 // shift) % side
            found[across, r // 8, r % 8, place] = lines[r, part * each : part * each + each]
    block = 128 * side
    along, down = blocks_down * block, block
    if major_k or span:
        return found.tobytes(), along, down
    return found.tobytes(), down, along  # LBO and SBO are exchanged if MN-major without a swizzle


def descriptor(at: int, lead: int, step: int, span: int) -> int:
    kind = {0: 0, 128: 1, 64: 2, 32: 3}[span]
    return at >> 4 | lead >> 4 << 16 | step >> 4 << 32 | kind << 62


def products(
    a: np.ndarray, b: np.ndarray, majors: tuple[bool, bool], spans: tuple[int, int],
    tail: str = "wgmma.wait_group.sync.aligned 0;", scale: str = "1, 1", again: bool = False,
    kind: str = "f16", between: str = "", fence: str = "wgmma.fence.sync.aligned;",
    proxy: str = "fence.proxy.async.shared::cta;", rows: str = "",
) -> np.ndarray:  # fmt: skip
    """Return the product a @ b.T by one instruction (or two) of 128 threads.

    ``rows``: registers of A, in the order in which wgmma takes them.
    """
    columns = len(b)
    at = 8192
    left, right = (
        image(x, major, span) for x, major, span in zip((a, b), majors, spans, strict=True)
    )
    if rows:
        left = (a.tobytes(), 0, 0)  # rows of 32 bytes, one after the other
    memory = np.zeros(2 * at, np.uint8)
    memory[: len(left[0])] = np.frombuffer(left[0], np.uint8)
    memory[at : at + len(right[0])] = np.frombuffer(right[0], np.uint8)
    words = [descriptor(0, *left[1:], spans[0]), descriptor(at, *right[1:], spans[1])]
    result, deep = {"s8": ("s32", 32), "tf32": ("f32", 8)}.get(kind, ("f32", 16))
    sums = [f"%f{i}" if result == "f32" else f"%r{40 + i}" for i in range(columns // 2)]
    fill = "".join(
        f"ld.global.v4.u32 {{%r20, %r21, %r22, %r23}}, [%d4+{2048 * i}];"
        f"st.shared.v4.u32 [%r10+{2048 * i}], {{%r20, %r21, %r22, %r23}};" for i in range(8)
    )  # fmt: skip
    one = (
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{deep}.{result}.{kind}.{kind} "
        f"{{{', '.join(sums)}}}, {f'{{{rows}}}' if rows else '%d20'}, %d21, SCALE"
    )
    one += f", {scale}" * (kind != "s8")
    flips = [f", {int(not major)}" for major in majors[bool(rows) :]]
    one += "".join(flips) * (deep == 16) + ";"
    load = """shr.u32 %r30, %r2, 5; and.b32 %r31, %r2, 31; shr.u32 %r32, %r31, 2;
    and.b32 %r33, %r31, 3; mad.lo.s32 %r34, %r30, 16, %r32; shl.b32 %r34, %r34, 5;
    shl.b32 %r35, %r33, 2; add.s32 %r34, %r34, %r35; add.s32 %r34, %r34, %r7;"""
    load += "".join(
        f"ld.shared.b32 %r{36 + i}, [%r34+{i % 2 * 256 + i // 2 * 16}];" for i in range(4)
    )
    store = "".join(
        f"st.global.b32 [%d7+{4 * (i // 4 * 8 + i % 2 + i // 2 % 2 * 8 * columns)}], {name};"
        for i, name in enumerate(sums)
    )
    body = f"""shl.b32 %r9, %r2, 4; add.s32 %r10, %r7, %r9; {fill} {proxy} bar.sync 0;
    mov.u64 %d20, {words[0]}; mov.u64 %d21, {words[1]}; setp.eq.u32 %p1, %r2, 9999;
    setp.ne.u32 %p2, %r2, 9999; {load * bool(rows)} {fence} {one.replace("SCALE", "%p1")}
    {one.replace("SCALE", "%p2") if again else ""}
    wgmma.commit_group.sync.aligned; {between} {tail}
    shr.u32 %r30, %r2, 5; and.b32 %r31, %r2, 31; shr.u32 %r32, %r31, 2; and.b32 %r33, %r31, 3;
    mad.lo.s32 %r34, %r30, 16, %r32; mul.lo.s32 %r34, %r34, {columns}; shl.b32 %r35, %r33, 1;
    add.s32 %r34, %r34, %r35; mul.wide.u32 %d6, %r34, 4; add.s64 %d7, %d2, %d6; {store}"""
    out, _ = small(body, memory, np.full((64, columns), np.nan, np.float32), threads=128, step=16)
    return out


def numbers(rows: int, seed: int) -> np.ndarray:
    """Return numbers of few bits, so that all sums are exact."""
    return np.random.default_rng(seed).integers(-8, 8, (rows, 16)).astype(np.float16)


@pytest.mark.parametrize("majors", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("spans", [(0, 0), (32, 32), (64, 64), (128, 128), (128, 32), (32, 64)])
def test_products_of_operands_in_every_layout(majors, spans):
    a, b = numbers(64, 1), numbers(64, 2)
    found = products(a, b, majors, spans)
    assert np.array_equal(found, a.astype(float) @ b.T.astype(float))


def test_signs_sums_and_types():
    a, b = numbers(64, 1), numbers(16, 2)
    expected = a.astype(float) @ b.T.astype(float)
    plain = (True, True), (128, 32)
    assert np.array_equal(products(a, b, *plain, scale="-1, 1"), -expected)
    assert np.array_equal(products(a, b, *plain, scale="-1, -1", again=True), 2 * expected)
    as_bits = [(x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    found = products(*(x.view(np.float16) for x in as_bits), *plain, kind="bf16")
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_products_of_tf32_and_of_bytes(span):
    """Test operands along K. tf32 uses the upper 19 bits; sums of bytes have 32 bits."""
    random = np.random.default_rng(3)
    a, b = (random.integers(-8, 8, (rows, 8)).astype(np.float32) for rows in (64, 32))
    plain = (True, True), (span, span)
    expected = a.astype(float) @ b.T.astype(float)
    lower = (a.view(np.uint32) | 0x1FFF).view(np.float32)
    assert np.array_equal(products(lower, b, *plain, kind="tf32", scale="1, -1"), -expected)
    a, b = (random.integers(-128, 128, (rows, 32)).astype(np.int8) for rows in (64, 32))
    expected = a.astype(int) @ b.T.astype(int)
    found = products(a, b, *plain, kind="s8", again=True).view(np.int32)
    assert np.array_equal(found, 2 * expected)


OWN = "%r36, %r37, %r38, %r39"


@pytest.mark.parametrize("span", [0, 128])
def test_products_of_rows_in_registers(span):
    """Test A in registers for all types, and halves of B along N. Exchanged rows exchange C's."""
    random = np.random.default_rng(4)
    a, b = (random.integers(-8, 8, (rows, 8)).astype(np.float32) for rows in (64, 32))
    plain, more = ((True, True), (span, span)), {"rows": OWN}
    expected = a.astype(float) @ b.T.astype(float)
    assert np.array_equal(products(a, b, *plain, kind="tf32", **more), expected)
    assert np.array_equal(products(a, b, *plain, kind="tf32", scale="-1, 1", **more), -expected)
    transposed = products(a, b, *plain, kind="tf32", rows="%r37, %r36, %r39, %r38")
    there = np.arange(64) ^ 8
    assert np.array_equal(transposed, expected[there])
    a, b = numbers(64, 1), numbers(64, 2)
    for major in (True, False):
        found = products(a, b, (True, major), (span, span), **more)
        assert np.array_equal(found, a.astype(float) @ b.T.astype(float))
    a, b = (random.integers(-128, 128, (rows, 32)).astype(np.int8) for rows in (64, 32))
    found = products(a, b, *plain, kind="s8", **more).view(np.int32)
    assert np.array_equal(found, a.astype(int) @ b.T.astype(int))


@pytest.mark.parametrize(
    ("between", "fence", "said"),
    [
        ("mov.u32 %r36, 0;", "wgmma.fence.sync.aligned;", "has these registers"),
        ("", "wgmma.fence.sync.aligned; mov.u32 %r39, 0;", "no wgmma.fence since"),
    ],
)
def test_rows_in_registers_are_left_alone(between, fence, said):
    a, b = (np.ones((rows, 8), np.float32) for rows in (64, 32))
    with pytest.raises(FaultError, match=said):
        products(a, b, (True, True), (0, 0), kind="tf32", rows=OWN, between=between, fence=fence)


def test_parts_of_an_operand_by_hand():
    """Test addresses: K-major at 128 bytes, row 9's second part; MN-major, k = 9, rows 64 to 71."""
    at = parts(WgmmaOperand(64, True, 1), descriptor(1024, 16, 1024, 128))
    assert at[0, 0] == 1024 and at[1, 9] == 1024 + 1024 + 128 + 0  # part 1 ^ row 1
    at = parts(WgmmaOperand(128, False, 1), descriptor(0, 4096, 1024, 128))
    assert at[8, 9] == 4096 + 1024 + 128 + 16  # part 0 ^ row 1, in the next span


def test_products_that_are_not_waited_for_are_found():
    a, b = numbers(64, 1), numbers(16, 2)
    plain = (a, b, (True, True), (128, 32))
    for kind, changed in {
        "fence": {"fence": ""},
        "proxy": {"proxy": ""},
        "in flight": {"tail": ""},
    }.items():
        with pytest.raises(FaultError) as caught:
            products(*plain, **changed)
        assert caught.value.kind == kind, caught.value
    with pytest.raises(FaultError, match="has these registers, and is not waited for"):
        products(*plain, between="mov.f32 %f3, 0f00000000;")
    with pytest.raises(FaultError, match="a wgmma or a bulk store, not waited for, reads"):
        products(*plain, between="st.shared.u32 [%r10], %r2;")
    # A wait applies only to its groups.
    with pytest.raises(FaultError, match="has these registers"):
        products(*plain, tail="wgmma.wait_group.sync.aligned 1;")
    assert products(*plain, between="mov.f32 %f30, 0f00000000;").shape == (64, 16)
    with pytest.raises(FaultError) as caught:
        products(*plain, fence="setp.lt.u32 %p9, %r2, 120; @!%p9 ret; wgmma.fence.sync.aligned;")
    assert caught.value.kind == "divergent"
