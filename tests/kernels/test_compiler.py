import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cute_gemm.errors import CompileError, HeaderError, UnsupportedError
from cute_gemm.toolchain import cache, headers
from cute_gemm.toolchain import nvrtc as compiler
from cute_gemm.toolchain.cubin import Resources
from cute_gemm.toolchain.headers import include_paths
from cute_gemm.toolchain.nvrtc import build, normalize_arch, ptx
from cute_gemm.toolchain.unit import TranslationUnit


def unit(body: str = "x[threadIdx.x] = 1.f;", before: str = "") -> TranslationUnit:
    return TranslationUnit(
        f'{before}\nextern "C" __global__ void entry(float* x) {{ {body} }}\n', "entry"
    )


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_80", "sm_80"),
        ("80", "sm_80"),
        (80, "sm_80"),
        (8.0, "sm_80"),
        ("8.6", "sm_86"),
        (" SM_90a ", "sm_90a"),
        ("9.0a", "sm_90a"),
        (10.0, "sm_100"),
        ("sm120a", "sm_120a"),
        ("sm_75", "sm_75"),  # not among the common ones: NVRTC is asked
    ],
)
def test_arch_spellings(arch: str | int | float, name: str) -> None:
    assert normalize_arch(arch) == name


@pytest.mark.parametrize("arch", ["", "banana", "sm_", "compute_80", "80b", "8", "sm_80; rm", None])
def test_what_is_no_arch(arch: str) -> None:
    with pytest.raises(UnsupportedError, match="is not an architecture"):
        normalize_arch(arch)


@pytest.mark.parametrize("arch", ["sm_33", "sm_999"])
def test_arch_that_nvrtc_does_not_know(arch: str) -> None:
    with pytest.raises(CompileError, match=rf"{arch}.*compiles for .*sm_80.*sm_90"):
        normalize_arch(arch)


def test_suffix_that_nvrtc_does_not_know() -> None:
    with pytest.raises(CompileError, match="sm_86a.*compiles for .*sm_90"):
        build(unit(), "sm_86a", cache=False)


def test_include_paths_hold_what_kernels_include() -> None:
    paths = include_paths()
    for header in ("cute/tensor.hpp", "cuda_runtime.h", "crt/mma.h", "cuda/std/tuple"):
        assert any((path / header).is_file() for path in paths), header
    assert any(list(path.glob("*/*.cuh")) for path in paths)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_build_gives_a_cubin(arch: str) -> None:
    built = build(unit(), arch, cache=False)
    assert built.cubin.startswith(b"\x7fELF")
    assert b"entry" in built.cubin
    assert (built.symbol, built.arch, built.cached) == ("entry", arch, False)
    assert 0 < built.resources.registers < 32
    assert built.resources == Resources(built.resources.registers, 0, 0, 0, 0)
    assert built.seconds > 0
    assert "ptxas info" in built.log


def test_static_shared_memory_is_counted() -> None:
    body = "__shared__ float s[300]; s[threadIdx.x] = *x; __syncthreads(); *x = s[299];"
    assert build(unit(body), "sm_80", cache=False).resources.shared_static == 1200


def test_the_entry_is_told_from_other_kernels() -> None:
    before = 'extern "C" __global__ void entry2(float* x) { __shared__ float s[64]; *x = s[9]; }'
    assert build(unit(before=before), "sm_80", cache=False).resources.shared_static == 0


def test_the_first_error_comes_first() -> None:
    with pytest.raises(CompileError) as caught:
        build(unit("int unused;\n x[0] = yy;\n zz();"), "sm_80", cache=False)
    message = str(caught.value)
    assert message.startswith('unit(3): error: identifier "yy" is undefined')
    assert "1 more error" in message
    assert '"zz" is undefined' in caught.value.log
    assert "\0" not in caught.value.log


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (unit(before="#include <no/such.h>"), 'cannot open source file "no/such.h"'),
        (unit(before='static_assert(sizeof(int) == 5, "five");'), "five"),
        (unit('asm volatile("nonsense;");'), "Not a name of any known instruction"),
        (unit("g();", before="__device__ void g();"), "Unresolved extern function"),
        (TranslationUnit(unit().source, "other"), "no entry named 'other'"),
    ],
)
def test_what_does_not_build(case: TranslationUnit, message: str) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        build(case, "sm_80", cache=False)
    assert caught.value.log


def test_spills_fail_the_build() -> None:
    # 64 live values at 32 registers per thread
    body = """
      float r[64];
      for (int i = 0; i < 64; ++i) r[i] = x[i * threadIdx.x];
      __syncthreads();
      float sum = 0;
      for (int i = 0; i < 64; ++i) sum += r[i] * r[63 - i];
      for (int i = 0; i < 64; ++i) x[i * threadIdx.x] = r[i] + sum;"""
    source = unit(body).source.replace("void", "void __launch_bounds__(1024, 2)")
    with pytest.raises(CompileError, match=r"entry spills registers \(\d+ bytes of stores"):
        build(TranslationUnit(source, "entry"), "sm_80", cache=False)
    found = build(TranslationUnit(source, "entry", spills=10_000), "sm_80", cache=False).resources
    assert 0 < found.spill_stores < 10_000 and 0 < found.spill_loads < 10_000


@pytest.mark.parametrize(
    "line",
    [
        "ptxas info    : (C7509) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to non wgmma instructions defining accumulator registers in 'entry'",
        "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions ...",
    ],
)
def test_serialised_wgmma_fails_the_build(line: str) -> None:
    log = "\n".join([line, "Compiling entry function 'entry' for 'sm_90a'", "Used 8 registers"])
    with pytest.raises(CompileError, match="wgmma"):
        compiler._checked_resources(log, TranslationUnit("", "entry"))
    found = compiler._checked_resources(log.replace(line, ""), TranslationUnit("", "entry"))
    assert found.registers == 8


CUTE = unit(
    """auto layout = make_layout(make_shape(Int<8>{}, Int<4>{}));
       static_assert(size(decltype(layout){}) == 32, "size");
       static_assert(is_same<decltype(layout), Layout<Shape<_8, _4>, Stride<_1, _8>>>::value, "");
       make_tensor(make_gmem_ptr(x), layout)(threadIdx.x, 1) = 2.f;""",
    before="#include <cute/tensor.hpp>\nusing namespace cute;",
)


def test_cute_builds_once_and_then_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "cache"))
    first = build(CUTE, "sm_80")
    again = build(CUTE, "sm_80")
    assert (first.cached, again.cached) == (False, True)
    assert again.cubin == first.cubin
    assert again.resources == first.resources
    assert again.seconds < first.seconds

    # Also in a new process, which imports nothing of CUDA for it.
    script = (
        "import sys; from cute_gemm.toolchain.nvrtc import build;"
        "from cute_gemm.toolchain.unit import TranslationUnit;"
        f"found = build(TranslationUnit({CUTE.source!r}, 'entry'), 'sm_80');"
        "assert found.cached; assert 'cuda.bindings' not in sys.modules; print(len(found.cubin))"
    )
    root = str(Path(compiler.__file__).parent.parent)
    answer = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": root}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert int(answer.stdout) == len(first.cubin)


def test_ptx_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "cache"))
    plain = unit()
    first, other, built = ptx(plain, "sm_80"), ptx(plain, "sm_90a"), build(plain, "sm_80")
    assert ".target sm_80" in first and ".target sm_90a" in other
    assert sorted(x.arch for x in cache.entries()) == ["compute_80", "compute_90a", "sm_80"]

    monkeypatch.setattr(compiler, "_nvrtc", refused)
    assert (ptx(plain, "sm_80"), ptx(plain, "sm_90a")) == (first, other)
    assert build(plain, "sm_80").cubin == built.cubin
    with pytest.raises(AssertionError, match="loaded"):
        ptx(replace(plain, source=f"{plain.source}\n"), "sm_80")


def refused() -> None:
    raise AssertionError("NVRTC is loaded")


def test_no_cache_means_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "cache"
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(place))
    assert not build(unit(), "sm_80", cache=False).cached
    assert not place.exists()


def test_ndebug_and_the_unroll_limit_reach_the_compiler() -> None:
    before = """
    #ifndef NDEBUG
    #error NDEBUG
    #endif
    #include <cuda/std/type_traits>
    static_assert(_CCCL_META_UNROLL_LIMIT == 10, "the name of the limit has changed");"""
    build(unit(before=before), "sm_80", cache=False)


class TestHeaders:
    @pytest.fixture(autouse=True)
    def fresh(self) -> None:
        include_paths.cache_clear()

    @pytest.fixture
    def bare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Emulate a machine without the nvidia wheels and without a toolkit."""
        whole = headers.package_dirs
        monkeypatch.setattr(
            headers, "package_dirs", lambda name: [] if name == "nvidia" else whole(name)
        )
        for variable in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
            monkeypatch.delenv(variable, raising=False)
        toolkit = headers._headers_of_toolkit
        monkeypatch.setattr(
            headers,
            "_headers_of_toolkit",
            lambda source, root: toolkit(source, root) if source != "/usr/local/cuda" else [],
        )

    @staticmethod
    def plant(root: Path, *names: str) -> None:
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()

    def test_no_cuda(self, bare: None) -> None:
        with pytest.raises(HeaderError, match="pip install.*nvidia-cuda-runtime.*CUDA_HOME"):
            include_paths()

    def test_no_cutlass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(headers, "cutlass_path", lambda: None)
        with pytest.raises(HeaderError, match="nvidia-cutlass"):
            include_paths()

    def test_toolkit(self, bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        include = tmp_path / "include"
        self.plant(include, "cuda_runtime.h", "crt/mma.h", "cccl/cuda/std/version")
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        assert include_paths()[2:] == (include, include / "cccl")

    def test_incomplete(self, bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plant(tmp_path / "include", "cuda_runtime.h", "cccl/cuda/std/version")
        monkeypatch.setenv("CUDA_PATH", str(tmp_path))
        with pytest.raises(HeaderError, match=r"CUDA_PATH.* lack crt: pip install"):
            include_paths()

    @pytest.mark.parametrize("major", [12, 13])
    def test_wheels_of_both_releases(
        self, major: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Test that headers and NVRTC are those of the bindings' release."""
        root = tmp_path / "nvidia"
        self.plant(root, "cuda_runtime/include/cuda_runtime.h", "cuda_nvcc/include/crt/mma.h")
        self.plant(root, "cuda_cccl/include/cuda/std/version", "cu13/include/cuda_runtime.h")
        self.plant(root, "cu13/include/crt/mma.h", "cu13/include/cccl/cuda/std/version")
        for name in ("cuda_nvrtc_cu12-12.9.86", "cuda_nvrtc-13.0.88"):
            (tmp_path / f"nvidia_{name}.dist-info").mkdir()
        bindings = {12: "12.9.10", 13: "13.4.4"}[major]
        (tmp_path / f"cuda_bindings-{bindings}.dist-info").mkdir()
        monkeypatch.setattr(headers, "package_dirs", lambda name: [tmp_path / name])
        asked = headers.cuda_major.__wrapped__
        for module in (headers, compiler):
            monkeypatch.setattr(module, "cuda_major", asked)
        found = headers.cuda_headers()
        assert found is not None and found.missing == ()
        if major == 12:
            parts = [root / f"cuda_{name}" / "include" for name in ("runtime", "nvcc", "cccl")]
        else:
            parts = [root / "cu13/include", root / "cu13/include", root / "cu13/include/cccl"]
        assert [found.runtime, found.crt, found.cccl] == parts
        assert compiler.nvrtc_version.__wrapped__() == {12: "12.9.86", 13: "13.0.88"}[major]

    def test_a_toolkit_of_another_release_is_not_taken(
        self, bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.plant(tmp_path / "include", "cuda_runtime.h", "crt/mma.h", "cccl/cuda/std/version")
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        other = {12: 13, 13: 12}[headers.cuda_major()]
        for release in (other, headers.cuda_major()):
            version = f"#define CUDART_VERSION {release}040\n"
            (tmp_path / "include" / "cuda_runtime_api.h").write_text(version)
            found = headers.cuda_headers()
            assert (found is None) is (release == other)
            assert found is None or found.version == f"{release}.4"


def test_version_of_the_wheel_is_that_of_the_library() -> None:
    assert compiler.nvrtc_version().startswith(compiler.loaded_nvrtc_version())


def test_templates_take_of_cute_what_they_use() -> None:
    """Test includes, half of which are for other GPUs, and static members, which use memory."""
    for path in headers.templates_path().rglob("*.cuh"):
        text = path.read_text()
        if path.name != "proof.cuh":
            assert not re.search(r"#include <cute/(tensor|atom|algorithm)", text), path
        assert not re.search(r"static constexpr (int|bool) \w+ =", text), path


FULL = """
import resource
from cute_gemm.errors import CompileError
from cute_gemm.toolchain.nvrtc import build
from cute_gemm.toolchain.unit import TranslationUnit
text = '#include <cute/tensor.hpp>\\nextern "C" __global__ void entry(float* x) { x[0] = 1; }'
build(TranslationUnit(text.split("\\n", 1)[1], "entry"), "sm_80", cache=False)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError:
    files.pop().close()
try:
    build(TranslationUnit(text, "entry"), "sm_80", cache=False)
except CompileError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits as POSIX has them")
def test_the_limit_of_open_files_is_said_to_be_reached() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(
        "NVRTC cannot open its headers, because this process has reached its limit of open files"
    ), done.stderr


#: Prints the process's megabytes before, at the peak of, and after a compilation.
MEMORY = """
import re
import cute_gemm as cg
def megabytes(name):
    text = open("/proc/self/status").read()
    return int(re.search(name + r":\\s+(\\d+)", text)[1]) // 1024
plan = cg.plan("TN", m=64, n=64, k=64, dtype="float16", arch="sm_90a", backend="cpu")
before = megabytes("VmRSS")
plan.ptx
print(before, megabytes("VmHWM"), megabytes("VmRSS"))
"""


def test_what_the_compiler_used_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=120
    )
    before, most, after = map(int, done.stdout.split())
    assert most - before > 150 and after - before < 0.5 * (most - before), done.stdout


def test_nvrtc_of_cuda_12_comes_before_that_of_13(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that NVRTC of CUDA 12 is preferred, although the finder of libraries prefers CUDA 13."""
    both = [tmp_path / "first", tmp_path / "second"]
    for name in ("first/cu13/lib/libnvrtc.so.13", "second/cuda_nvrtc/lib/libnvrtc.so.12"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    loaded: list[str] = []
    monkeypatch.setattr(compiler, "package_dirs", lambda name: both)
    monkeypatch.setattr(compiler, "cuda_major", lambda: 12)
    monkeypatch.setattr(compiler.ctypes, "CDLL", loaded.append)
    # The library of this process may be of CUDA 13, as with PyTorch.
    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", lambda: (0, 13, 0))
    compiler._nvrtc.cache_clear()
    try:
        with pytest.raises(HeaderError, match=r"NVRTC 13\.0 is loaded, expected that of CUDA 12"):
            compiler._nvrtc()
    finally:
        compiler._nvrtc.cache_clear()
    assert loaded == [str(both[1] / "cuda_nvrtc" / "lib" / "libnvrtc.so.12")]
