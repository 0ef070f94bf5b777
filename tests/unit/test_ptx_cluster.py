"""Test clusters of CTAs: loads, arrivals and waits across CTAs."""

import numpy as np
import pytest
from test_ptx_hopper import FULL, INIT, WAIT, copy_out, fault, small

from cute_gemm.errors import PtxError
from cute_gemm.ptx.tensor import Tensor


def test_special_registers_of_a_cluster():
    names = ("%cluster_ctarank", "%cluster_nctarank", "%cluster_ctaid.x", "%cluster_nctaid.x",
             "%clusterid.x", "%nclusterid.x", "%cluster_nctaid.y")  # fmt: skip
    moves = "".join(f"mov.u32 %r{20 + i}, {name};" for i, name in enumerate(names))
    sums = "".join(f"mad.lo.s32 %r40, %r40, 10, %r{20 + i};" for i in range(len(names)))
    out, _ = small(f"{moves} mov.u32 %r40, 0; {sums} st.global.u32 [%d5], %r40;", [0],
                   np.zeros(128, np.uint32), ctas=4, cluster=2)  # fmt: skip
    assert out[::32].tolist() == [202021, 1212021, 202121, 1212121]
    with pytest.raises(PtxError, match="cluster=3 does not divide the 4 CTAs"):
        small("", [0], [0], ctas=4, cluster=3)


SHARED_LOAD = f"""{INIT} barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mov.u32 %r20, %cluster_ctarank; shl.b32 %r21, %r20, 9; add.s32 %r21, %r21, %r7;
shl.b32 %r22, %r20, 2; @%p30 bra W; mov.u16 %h1, 3;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7+{FULL}], 1024;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
[%r21], [%d30, {{0, %r22}}], [%r7+{FULL}], %h1; W: {WAIT}"""
END = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def test_a_cluster_shares_what_each_of_its_ctas_loads():
    matrix, out = np.arange(64 * 8, dtype=np.uint16).reshape(8, 64), np.zeros(512, np.uint32)
    half = Tensor("float16", (64, 8), (128,), (64, 4), 0)
    options = {"tensor": half, "ctas": 2, "cluster": 2}
    # Results of a CTA are after those of the other: its 1024 bytes begin at %d6.
    to = "mul.wide.u32 %d6, %r4, 896; add.s64 %d5, %d5, %d6;"
    body = SHARED_LOAD + to + copy_out(8) + END
    found, done = small(body, matrix, out, record=True, **options)
    for cta in np.split(found.view(np.uint16), 2):
        assert np.array_equal(cta.reshape(8, 64), matrix)
    assert done.boxes == (("in", False, 2, 32, 1024),)
    fault("race", body.replace(END, ""), matrix, out, **options)
    start = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\nmov"
    fault("race", body.replace(start, "mov"), matrix, out, **options)
    fault("out of bounds", body.replace("mov.u16 %h1, 3", "mov.u16 %h1, 5"), matrix, out, **options)
    said = fault("deadlock", body.replace("mov.u16 %h1, 3", "mov.u16 %h1, 1"), matrix, out,
                 **options)  # fmt: skip
    assert "CTA (1, 0, 0), warp 0" in said and "lacks 0 of 1 arrivals and 1024 bytes" in said


def test_an_arrival_at_another_cta():
    """Test that CTA 1 waits for CTA 0, which writes nothing but arrives."""
    body = f"""{INIT} {END} mov.u32 %r20, %cluster_ctarank; setp.eq.u32 %p1, %r20, 1;
    @%p1 bra W; @%p30 bra E; add.s32 %r21, %r7, {FULL}; mov.u32 %r23, 1;
    mapa.shared::cluster.u32 %r22, %r21, %r23; mbarrier.arrive.shared::cluster.b64 _, [%r22];
    bra E; W: {WAIT} st.global.u32 [%d5], %r2; E: {END.replace("AGAIN", "LAST")}"""
    out, _ = small(body, [0], np.zeros(64, np.uint32), ctas=2, cluster=2)
    assert out[32:].tolist() == list(range(32)) and not out[:32].any()
    said = fault("deadlock", body.replace("mov.u32 %r23, 1;", "mov.u32 %r23, 0;"), [0],
                 np.zeros(64, np.uint32), ctas=2, cluster=2)  # fmt: skip
    assert "CTA (1, 0, 0), warp 0" in said and "32 of 64 threads have arrived" in said


def test_other_barriers_between_arriving_and_waiting():
    body = f"""st.shared.u32 [%r8], %r2; barrier.cluster.arrive.aligned; bar.sync 2, 32;
    bar.sync 2, 32; barrier.cluster.wait.aligned; ld.shared.u32 %r20, [%r8];
    st.global.u32 [%d5], %r20; {END}"""
    out, _ = small(body, [0], np.zeros(128, np.uint32), ctas=4, cluster=2)
    assert out.reshape(4, 32).tolist() == [list(range(32))] * 4
