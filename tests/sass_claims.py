"""Check that the instructions of a report are in a kernel's machine code."""

import re
from collections.abc import Iterable

from cute_gemm.access.accesses import Access, SharedAccess, TmaAccess
from cute_gemm.toolchain.sass import disassemble, instructions

#: The report's instructions in SASS. The width is appended to plain loads and stores.
_OPCODES = {
    ("cp.async", 128): "LDGSTS.E.BYPASS", "cp.async": "LDGSTS.E", "ld.global": "LDG.E",
    "st.global": "STG.E", "ld.shared": "LDS", "st.shared": "STS",
}  # fmt: skip
_WIDTHS = {8: ".U8", 16: ".U16", 32: "", 64: ".64", 128: ".128"}

#: Modifiers of the kind of transfer. Others are hints (``LTC128B``) or scopes (``STRONG``).
_MODIFIERS = re.compile(r"E|BYPASS|[US]8|[US]?16|2|4|64|128|M88|MT88|[1-5]D|MULTICAST")


def claims(accesses: Iterable[Access]) -> set[str]:
    """Return the opcodes that the machine code must have, according to a report's accesses.

    Opcodes have only relevant modifiers: ``"LDGSTS.E.BYPASS.128"``.
    """
    return {_claim(access) for access in accesses}


def check(cubin: bytes, accesses: Iterable[Access]) -> list[str]:
    """Return the `claims` that no instruction of a cubin fulfills. An empty list is right.

    The operand of an opcode is unknown: equal loads of A and of B are one claim.
    """
    executed = {_kind(opcode) for opcode in instructions(disassemble(cubin))}
    return sorted(claims(accesses) - executed)


def _claim(access: Access) -> str:
    if isinstance(access, TmaAccess):
        if access.direction == "store":
            return f"UTMASTG.{access.modes}D"
        return f"UTMALDG.{access.modes}D" + ".MULTICAST" * (access.multicast > 1)
    name, bits = access.instruction, access.bits
    if isinstance(access, SharedAccess) and name == "wgmma":
        return "IGMMA.U8.U8" if access.element_bits == 8 else "HGMMA"
    matrix = re.fullmatch(r"(ld|st)matrix\.x([124])(\.trans)?", name)
    if matrix:
        opcode = "LDSM" if matrix[1] == "ld" else "STSM"
        number = "" if matrix[2] == "1" else f".{matrix[2]}"
        return f"{opcode}.16.{'MT88' if matrix[3] else 'M88'}{number}"
    return _OPCODES.get((name, bits), _OPCODES.get(name, name)) + _WIDTHS[bits]


def _kind(opcode: str) -> str:
    """Return an opcode as `claims` spells it."""
    name, *modifiers = opcode.split(".")
    # LD is a load whose address space ptxas could not determine. LD.S8 loads signed bytes.
    name = {"LD": "LDG", "ST": "STG"}.get(name, name)
    kept = [each for each in modifiers if _MODIFIERS.fullmatch(each)]
    return ".".join([name, *kept]).replace(".S8", ".U8").replace(".S16", ".U16")
