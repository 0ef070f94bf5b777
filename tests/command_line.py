"""Words that tests of several commands give."""

from cute_gemm.run.driver import why_no_gpu

SIZES = ["-m", "96", "-n", "80", "-k", "64"]


def compile_arch() -> list[str]:
    """An architecture to name where there is no GPU to take it from."""
    return ["--arch", "sm_80"] if why_no_gpu() else []
