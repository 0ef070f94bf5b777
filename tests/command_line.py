"""Arguments that tests of several commands share."""

from cute_gemm.run.driver import why_no_gpu

SIZES = ["-m", "96", "-n", "80", "-k", "64"]


def compile_arch() -> list[str]:
    """Return an ``--arch`` argument if there is no GPU that determines it."""
    return ["--arch", "sm_80"] if why_no_gpu() else []
