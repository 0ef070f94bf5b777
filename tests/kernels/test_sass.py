"""Test that machine code has the instructions of the report; PTX and SASS as text."""

import re
import shutil
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import cuda.pathfinder
import numpy as np
import pytest
import sass_claims
from cases import OPS, configure, problem

from cute_gemm.access.accesses import Access, GlobalAccess, SharedAccess, TmaAccess
from cute_gemm.errors import CompileError
from cute_gemm.kernels import registry
from cute_gemm.kernels.base import Kernel
from cute_gemm.kernels.cutlass.universal import CutlassUniversal
from cute_gemm.kernels.simt.kernel import SimtKernel
from cute_gemm.kernels.sm80.pipeline import Sm80Pipeline
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.toolchain import sass
from cute_gemm.toolchain.nvrtc import build, ptx
from cute_gemm.toolchain.unit import TranslationUnit

PIPELINE, UNIVERSAL = Sm80Pipeline(), CutlassUniversal()

# -- instruction by instruction -------------------------------------------------------------------

MATRIX = Matrix("A", (64, 64), (1, 64), "float16", 16)
NOWHERE = np.zeros((1, 32, 2), int)


def unit(*bodies: str) -> TranslationUnit:
    """Return a unit with a kernel for each body, ``entry_0`` and so on."""
    kernels = (kernel_of(body, f"entry_{number}") for number, body in enumerate(bodies))
    return TranslationUnit("".join(kernels), "entry_0")


def kernel_of(body: str, name: str) -> str:
    """Return a kernel of inline PTX with global memory g, shared memory s and tensor map t."""
    return (
        f'extern "C" __global__ void {name}(char* g, void* t) {{\n'
        "  __shared__ __align__(1024) char space[4096];\n"
        "  unsigned s = __cvta_generic_to_shared(space) + threadIdx.x * 16, a = 1, b, c, d;\n"
        "  asm volatile("
        '"{\\n.reg .b16 h;\\n.reg .b64 w, x;\\nmov.b16 h, 0;\\nmov.b64 w, 0;\\n'
        f'{body}\\n}}" : "+r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(g), "r"(s), "l"(t) : "memory");\n'
        "  *(uint4*)g = make_uint4(a, b, c, d);\n}\n"
    )


def glob(instruction: str, bits: int, direction: Any = "load") -> Access:
    return GlobalAccess("A", direction, instruction, bits, MATRIX, (64, 64), NOWHERE, 0, 1)


def shared(instruction: str, bits: int, direction: Any = "load") -> Access:
    return SharedAccess("A", direction, instruction, bits, NOWHERE[..., 0])


def tma(direction: Any = "load", multicast: int = 1) -> Access:
    return TmaAccess("A", direction, MATRIX, (64, 64), 1, multicast=multicast)


FOUR = "{%0, %1, %2, %3}"
BOX = "[%6, {%0, %0}]"
BULK = "cp.async.bulk.tensor.2d"


INSTRUCTIONS = [
    (glob("cp.async", 128), "LDGSTS.E.BYPASS.128", "cp.async.cg.shared.global [%5], [%4], 16;"),
    (glob("cp.async", 64), "LDGSTS.E.64", "cp.async.ca.shared.global [%5], [%4], 8;"),
    (shared("cp.async", 32, "store"), "LDGSTS.E", "cp.async.ca.shared.global [%5], [%4], 4;"),
    (glob("ld.global", 128), "LDG.E.128", f"ld.global.v4.b32 {FOUR}, [%4];"),
    (glob("ld.global", 64), "LDG.E.64", "ld.global.v2.b32 {%0, %1}, [%4];"),
    (glob("ld.global", 32), "LDG.E", "ld.global.nc.b32 %0, [%4];"),
    (glob("ld.global", 16), "LDG.E.U16", "ld.b16 h, [%4]; cvt.u32.u16 %0, h;"),
    (glob("ld.global", 8), "LDG.E.U8", "ld.global.s8 %0, [%4];"),
    (glob("st.global", 64, "store"), "STG.E.64", "st.global.b64 [%4], w;"),
    (glob("st.global", 32, "store"), "STG.E", "st.global.b32 [%4+64], %0;"),
    (glob("st.global", 16, "store"), "STG.E.U16", "st.global.b16 [%4], h;"),
    (glob("st.global", 8, "store"), "STG.E.U8", "st.global.b8 [%4], %0;"),
    (shared("ld.shared", 128), "LDS.128", f"ld.shared.v4.b32 {FOUR}, [%5];"),
    (shared("ld.shared", 64), "LDS.64", "ld.shared.v2.b32 {%0, %1}, [%5];"),
    (shared("ld.shared", 32), "LDS", "ld.shared.b32 %0, [%5];"),
    (shared("ld.shared", 16), "LDS.U16", "ld.shared.b16 h, [%5]; cvt.u32.u16 %0, h;"),
    (shared("ld.shared", 8), "LDS.U8", "ld.shared.u8 %0, [%5];"),
    (shared("st.shared", 128, "store"), "STS.128", f"st.shared.v4.b32 [%5], {FOUR};"),
    (shared("st.shared", 64, "store"), "STS.64", "st.shared.b64 [%5], w;"),
    (shared("st.shared", 32, "store"), "STS", "st.shared.b32 [%5], %0;"),
    (shared("st.shared", 16, "store"), "STS.U16", "st.shared.b16 [%5], h;"),
    (shared("st.shared", 8, "store"), "STS.U8", "st.shared.b8 [%5], %0;"),
    *(
        (
            shared(f"{kind}matrix.x{number}{trans}", 128, direction),
            f"{code}.16.{'MT88' if trans else 'M88'}{f'.{number}' * (number > 1)}",
            f"{kind}matrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 "
            + ", ".join((registers, "[%5]") if kind == "ld" else ("[%5]", registers))
            + ";",
        )
        for (kind, code, direction), trans, (number, registers) in product(
            (("ld", "LDSM", "load"), ("st", "STSM", "store")), ("", ".trans"),
            ((1, "{%0}"), (2, "{%0, %1}"), (4, FOUR)),
        )
    ),
    (
        tma(), "UTMALDG.2D",
        f"{BULK}.shared::cluster.global.mbarrier::complete_tx::bytes [%5], {BOX}, [%5];",
    ),
    (
        tma(multicast=2), "UTMALDG.2D.MULTICAST",
        f"{BULK}.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        f"[%5], {BOX}, [%5], h;",
    ),
    (tma("store"), "UTMASTG.2D", f"{BULK}.global.shared::cta.bulk_group {BOX}, [%5];"),
]  # fmt: skip


@lru_cache
def machine_code() -> dict[str, str]:
    """Return the machine code of each body, and of an empty one, with a single call of nvdisasm."""
    bodies = ["", *(body for *_, body in INSTRUCTIONS)]
    text = sass.disassemble(build(unit(*bodies), "sm_90a").cubin)
    _, *parts = re.split(r"^\s*\.section\s+\.text\.(entry_\d+),", text, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    return {body: sections[f"entry_{number}"] for number, body in enumerate(bodies)}


@pytest.mark.parametrize(
    ("access", "opcode", "body"),
    INSTRUCTIONS,
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_an_instruction_becomes(
    access: Access, opcode: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sass_claims, "disassemble", machine_code().__getitem__)
    assert sass_claims.claims([access]) == {opcode}
    assert sass_claims.check(body, [access]) == []  # type: ignore[arg-type]
    assert sass_claims.check("", [access]) == [opcode]  # type: ignore[arg-type]


def test_what_never_executes_is_not_counted() -> None:
    text = """
        /*0a50*/              @!PT LDS RZ, [RZ] ;
        /*0a80*/               @P1 LDGSTS.E.BYPASS.LTC128B.128 [R82], [R22.64], P2 ;
        /*0b80*/              @!P0 LDG.E.U16 R13, [R16.64] ;
        /*0b90*/             @!UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0c80*/                   LDG.E.U16 R13, desc[UR4][R16.64] ;
                                                                      /* 0x000000100d0d8981 */
"""
    assert sass.instructions(text) == {
        "LDGSTS.E.BYPASS.LTC128B.128": 1,
        "LDG.E.U16": 2,
        "UIADD3": 1,
    }


# -- shipped kernels ------------------------------------------------------------------------------


def missing(kernel: Kernel, op: str, arch: str, **given: Any) -> list[str]:
    options = {key: given.pop(key) for key in kernel.options if key in given}
    asked = problem(op, 256, **given)
    config = configure(kernel, asked, arch, **options)
    cubin = build(kernel.unit(config), arch).cubin
    return sass_claims.check(cubin, kernel.accesses(config, asked))


@pytest.mark.parametrize(
    ("kernel", "op", "arch", "given"),
    [
        (PIPELINE, "TN", "sm_80", {}),
        (PIPELINE, "NT", "sm_90a", {"dtype": "bfloat16", "order": "C"}),
        (PIPELINE, "NN", "sm_80", {"lda": 260, "ldb": 257, "ldc": 258}),
        (PIPELINE, "NT", "sm_80", {"dtype": "float32"}),
        (PIPELINE, "TT", "sm_90a", {"dtype": "float32", "compute": "tf32", "ldb": 258}),
        (PIPELINE, "TN", "sm_90a", {"dtype": "float64", "ldc": 257}),
        (PIPELINE, "CT", "sm_90a", {"dtype": "complex128"}),
        (PIPELINE, "NT", "sm_80", {"dtype": "int8", "lda": 260, "ldb": 257}),
        (UNIVERSAL, "NN", "sm_80", {"ldc": 257}),
        (UNIVERSAL, "TN", "sm_90a", {"dtype": "int8"}),
    ],
    ids=lambda value: value.name if isinstance(value, Kernel) else str(value),
)
def test_the_machine_code_has_what_the_report_claims(
    kernel: Kernel, op: str, arch: str, given: dict[str, Any]
) -> None:
    assert missing(kernel, op, arch, **given) == []


LADDER = [name for name in registry.LADDER if isinstance(registry.get(name), SimtKernel)]


@pytest.mark.parametrize(
    ("name", "op", "arch", "given"),
    [
        ("naive", "NN", "sm_80", {}),
        ("coalesced", "TN", "sm_90a", {"dtype": "float16"}),
        ("smem_full_k", "TT", "sm_80", {"k": 64, "dtype": "bfloat16"}),
        ("smem_tiled", "NT", "sm_90a", {"dtype": "float64"}),
        ("register_rows", "TN", "sm_80", {}),
        ("thread_tile_1d", "NN", "sm_90a", {"order": "C"}),
        ("thread_tile_2d", "TT", "sm_80", {"dtype": "complex64"}),
        ("vectorized", "TN", "sm_90a", {"ldc": 258}),
        ("bank_free", "NN", "sm_80", {"dtype": "float16", "skew": "padding"}),
        ("warp_tiled", "NT", "sm_90a", {"dtype": "bfloat16", "lda": 258, "ldb": 257}),
        ("double_buffered", "NN", "sm_80", {"m": 255}),
        ("double_buffered", "TT", "sm_90a", {"dtype": "float16", "staging": "registers"}),
        ("tensor_core", "TN", "sm_90a", {"order": "C"}),
    ],
)
def test_the_machine_code_of_the_ladder(
    name: str, op: str, arch: str, given: dict[str, Any]
) -> None:
    types = {} if name == "tensor_core" else {"dtype": "float32"}
    assert missing(registry.get(name), op, arch, **types | given) == []


@pytest.mark.matrix
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("pad", [0, 1, 2, 4])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float64", "complex64", "complex128"]
)
@pytest.mark.parametrize("name", LADDER)
def test_all_machine_code_of_the_ladder(
    name: str, dtype: str, op: str, pad: int, arch: str
) -> None:
    k = 64 if name == "smem_full_k" else 256
    ld = dict.fromkeys(("lda", "ldb", "ldc"), 256 + pad)
    for order in "FC":
        assert missing(registry.get(name), op, arch, dtype=dtype, k=k, order=order, **ld) == []


@pytest.mark.matrix
@pytest.mark.parametrize("kernel", [PIPELINE, UNIVERSAL], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("pads", [(0, 0, 0), (4, 1, 2)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "tf32", "float64", "complex128", "int8"]
)
def test_all_machine_code(
    dtype: str, op: str, arch: str, pads: tuple[int, int, int], kernel: Kernel
) -> None:
    if kernel is UNIVERSAL and dtype == "int8" and any(pads):
        pytest.skip("CUTLASS's int8 kernels do not take every leading dimension")
    if kernel is UNIVERSAL and dtype == "complex128":
        pytest.skip("real types alone")
    types = {"dtype": "float32", "compute": "tf32"} if dtype == "tf32" else {"dtype": dtype}
    ld = {name: 256 + pad for name, pad in zip(("lda", "ldb", "ldc"), pads, strict=True)}
    assert missing(kernel, op, arch, **types, **ld) == []


def test_a_false_claim_is_found() -> None:
    problem = from_sizes("TN", m=256, n=256, k=256, dtype="float16")
    config = configure(PIPELINE, problem, "sm_80")
    cubin = build(PIPELINE.unit(config), "sm_80").cubin
    accesses = PIPELINE.accesses(config, problem)
    wrong: list[Access] = [
        replace(access, bits=64) if access.instruction == "cp.async" else access
        for access in accesses
        if not isinstance(access, TmaAccess)
    ]
    wrong.append(shared("ldmatrix.x4.trans", 128))
    assert sass_claims.check(cubin, accesses) == []
    assert sass_claims.check(cubin, wrong) == ["LDGSTS.E.64", "LDSM.16.MT88.4"]


# -- the tools ------------------------------------------------------------------------------------


def test_no_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.pathfinder, "find_nvidia_binary_utility", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(sass.ToolError, match=r"pip install 'cute-gemm\[sass\]'.*CUDA_HOME"):
        sass.disassemble(b"")


def test_what_nvdisasm_refuses() -> None:
    with pytest.raises(sass.ToolError, match="nvdisasm failed .*the cubin"):
        sass.disassemble(b"\x7fELF, but no cubin")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ptx(arch: str) -> None:
    text = ptx(unit("cp.async.cg.shared.global [%5], [%4], 16;"), arch)
    assert f".target {arch}\n" in text and ".visible .entry entry_0(" in text
    assert "cp.async.cg.shared.global" in text and "\0" not in text


def test_ptx_has_the_options_of_the_build() -> None:
    text = """
    #include <cute/tensor.hpp>
    #ifndef NDEBUG
    #error NDEBUG
    #endif
    constexpr int on_the_device() { return _CCCL_META_UNROLL_LIMIT; }
    extern "C" __global__ void entry(int* g) { *g = on_the_device(); }"""
    assert ", 10;" in ptx(TranslationUnit(text, "entry"), "sm_80")


def test_ptx_errors() -> None:
    with pytest.raises(
        CompileError, match=r'unit\(1\): error: identifier "y" is undefined'
    ) as caught:
        ptx(TranslationUnit("int x = y;", "entry"), "sm_80")
    assert '"y" is undefined' in caught.value.log
    with pytest.raises(CompileError, match="sm_86a.*compiles for .*sm_90"):
        ptx(unit(""), "sm_86a")
