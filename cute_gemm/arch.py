"""What an architecture has."""

from __future__ import annotations

import re

from cute_gemm.errors import UnsupportedError

#: Shared memory that a CTA may have, in KiB, by compute capability (CUDA C Programming Guide,
#: "Technical Specifications per Compute Capability"); 99 for those not named.
_SHARED_KIB = {80: 163, 87: 163, 90: 227, 100: 227, 103: 227, 110: 227}


def compute_capability(arch: str) -> int:
    """Return the compute capability of an arch as an int.

    Raises
    ------
    UnsupportedError
        When that is not what an arch looks like.

    Examples
    --------
    >>> compute_capability("sm_90a")
    90
    """
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if not found:
        raise UnsupportedError(f"arch is {arch!r}; expected one like 'sm_80' or 'sm_90a'")
    return int(found[1])


def shared_limit(cc: int) -> int:
    """Return the bytes of shared memory that a CTA may have.

    Examples
    --------
    >>> shared_limit(80)
    166912
    """
    return _SHARED_KIB.get(cc, 99) * 1024
