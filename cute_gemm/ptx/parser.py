"""PTX text -> the instructions of one kernel, with registers and symbols resolved.

The grammar is that of the PTX ISA, chapters 4 (syntax) and 5 (state spaces, types, variables), in
the subset that compilers emit for a kernel without calls.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cute_gemm.errors import FaultError, PtxError, shown

#: Bytes of every fundamental type; predicates have no memory type.
BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "bsu" for bits in (8, 16, 32, 64)},
    "b128": 16, "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4, "f32": 4, "tf32": 4, "f64": 8,
    "pred": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Register:
    """A register by its number among those that the kernel uses."""

    slot: int
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant as written: an int, or a float with its given bits."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Name:
    """A symbol: a variable, a parameter, a label or a special register."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; for a tensor ``[base, {coordinates}]``."""

    base: Register | Name | Immediate
    offset: int
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b}``, or ``d|p``."""

    parts: tuple[Operand, ...]


Operand = Register | Immediate | Name | Address | Vector


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its opcode split at the dots, its operands and its predicate."""

    op: tuple[str, ...]
    operands: tuple[Operand, ...]
    #: A predicate and whether it is negated, or None.
    guard: tuple[Register, bool] | None
    line: int
    text: str

    def fault(self, kind: str, what: str) -> FaultError:
        """Return a fault of the instruction: ``what`` has thread, place and reason."""
        return FaultError(self.says(what), kind, self.line)

    def says(self, what: str) -> str:
        """Return a message about the instruction, with its line and its shortened text."""
        text = self.text if len(self.text) < 120 else f"{self.text[:100]} ..."
        return f"line {self.line}: {text}: {what}"


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter or a variable: bytes, alignment, and its offset in its space.

    ``size`` is None for an array that takes the rest of the launch's memory (``extern .shared``).
    """

    name: str
    size: int | None
    align: int
    offset: int
    value: bytes = b""
    #: Type and number of its elements; 0 if it is not an array.
    type: str = "b8"
    count: int = 0


@dataclass
class Kernel:
    """One entry of a PTX text."""

    name: str
    parameters: dict[str, Variable]
    instructions: list[Instruction] = field(default_factory=list)
    #: Labels: the index of the instruction after each.
    labels: dict[str, int] = field(default_factory=dict)
    registers: list[Register] = field(default_factory=list)
    shared: dict[str, Variable] = field(default_factory=dict)
    #: Variables of ``.global`` and ``.const`` that the kernel names.
    globals: dict[str, Variable] = field(default_factory=dict)

    @property
    def static_shared(self) -> int:
        """Bytes of shared memory that the text declares."""
        return end_of(self.shared)


def end_of(variables: dict[str, Variable]) -> int:
    """Return the end of variables in bytes; those without a size do not count."""
    return max((v.offset + v.size for v in variables.values() if v.size is not None), default=0)


_ENTRY = re.compile(r"\.entry\s+([\w$%.]+)\s*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
#: A brace, a line with source information, a label, or a statement that ends with a semicolon.
_ITEM = re.compile(
    r"\s*(?:(?P<open>\{)|(?P<close>\})|;|\.(?:loc|file)[^\n]*"
    r"|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)|(?P<statement>[^;]*);?)"
)
_GUARD = re.compile(r"@(!?)\s*([\w$%]+)\s+")
_OPCODE = re.compile(r"[A-Za-z][\w.:]*")
#: Opcodes without other parts.
_BARE = ("ret", "exit", "bra", "trap", "brkpt")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s|]+(?:\s*\|\s*[^,\s|]+)?")
_ADDRESS = re.compile(r"([^+,{]+?)\s*(?:\+\s*(-?\w+))?\s*(?:,\s*\{([^{}]*)\})?")
_DECLARED = re.compile(r"(?:([\w$%]+)<(\d+)>|([\w$%]+))$")
_NUMBERED = re.compile(r"[0-9]+$")
_NUMBER = re.compile(r"-?(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?"
                     r"|0[bB][01]+U?|\d+\.\d*(?:[eE][-+]?\d+)?|\d+U?)$")  # fmt: skip
_VARIABLE = re.compile(
    r"(?P<spaces>(?:\.\w+\s+)*?)\.(?P<space>shared|global|const|param|local)\s+"
    r"(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$%]+)"
    r"\s*(?P<array>\[\s*\d*\s*\])?\s*(?:=\s*(?P<value>.*))?$",
    re.DOTALL,
)
#: Attributes of a pointer: optional space and alignment (PTX ISA, 5.4.1).
_POINTER = re.compile(r"\s+\.ptr(\s*\.(const|global|local|shared)\b)?(\s*\.align\s+\d+)?")
#: Nested braces, and characters of a statement: more than compilers ever write.
_DEEPEST, _LONGEST = 64, 20_000
#: Largest size of a variable in bytes.
_LARGEST = 1 << 30
#: Directives without an effect on results.
_IGNORED = (".pragma", ".maxntid", ".minnctapersm", ".reqntid")


def entries(text: str) -> tuple[str, ...]:
    """Return the names of all entries of a PTX text."""
    return tuple(match[1] for match in _ENTRY.finditer(_COMMENT.sub("", text)))


def parse(text: str, entry: str | None = None) -> Kernel:
    """Return an entry of a PTX text; ``PtxError``, with its line, if it is not understood.

    Apart from it, only the variables that the entry names are read, so the thousands of constants
    from headers cost nothing.
    """
    text = _COMMENT.sub(lambda kernels: "\n" * kernels[0].count("\n"), text)
    kernels = [match for match in _ENTRY.finditer(text) if entry in (None, match[1])]
    if len(kernels) != 1:
        known = ", ".join(entries(text))
        if not known:
            raise PtxError("the PTX has no entry; expected a kernel: .visible .entry NAME(...) {")
        if entry is None:
            raise PtxError(f"the PTX has several entries; expected the name of one of {known}")
        raise PtxError(f"the PTX has no entry {entry!r}; expected one of {known}")
    return _Parser(text, kernels[0]).kernel


@dataclass
class _Scope:
    """Names between two braces: types of registers (``%r<>`` for a family) and labels."""

    types: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    known: dict[str, Register] = field(default_factory=dict)


class _Parser:
    def __init__(self, text: str, entry: re.Match[str]) -> None:
        self.text = text
        self.lines = [match.start() for match in re.finditer("\n", text)]
        self.kernel = Kernel(entry[1], {})
        self.scopes: list[_Scope] = []
        self.jumps: list[tuple[int, Instruction, list[_Scope]]] = []
        self.numbers: dict[str, Operand] = {}
        at = entry.end()
        if text[at : at + 1] == "(":
            end = text.find(")", at)
            if end < 0:
                raise self.error(at, "parameters without a closing parenthesis")
            self._parameters(text[at + 1 : end], at)
            at = end + 1
        start = text.find("{", at)
        if start < 0:
            raise self.error(at, "an entry without a body")
        for directive in re.findall(r"\.\w+", text[at:start]):
            if not directive.startswith((*_IGNORED, ".max", ".min")):
                raise self.error(at, f"the directive {directive} of an entry is not supported")
        for position, statement in self._statements(start):
            self._statement(position, statement)
        for index, jump, scopes in self.jumps:
            self.kernel.instructions[index] = self._resolved(jump, scopes)

    def error(self, position: int, what: str) -> PtxError:
        return PtxError(f"line {self.line(position)}: {what}")

    def line(self, position: int) -> int:
        return bisect_right(self.lines, position - 1) + 1

    # ---- text ----------------------------------------------------------------------------------

    def _statements(self, position: int) -> Iterator[tuple[int, str]]:
        """Yield the statements that end in a semicolon; handle braces and labels on the way."""
        while True:
            item = _ITEM.match(self.text, position)
            assert item is not None  # it also matches nothing
            kind = item.lastgroup
            position = item.start(kind or 0)
            if kind == "open":
                if len(self.scopes) == _DEEPEST:
                    raise self.error(position, f"more than {_DEEPEST} nested braces")
                self.scopes.append(_Scope())
            elif kind == "close":
                self.scopes.pop()
                if not self.scopes:
                    return
            elif kind == "label":
                label = item["label"]
                unique = label if len(self.scopes) == 1 else f"{label}@{position}"
                self.scopes[-1].labels[label] = unique
                self.kernel.labels[unique] = len(self.kernel.instructions)
            elif kind == "statement":
                statement = item["statement"]
                if not item[0].endswith(";"):
                    raise self.error(position, "a statement without a semicolon")
                if len(statement) > _LONGEST:
                    raise self.error(position, f"a statement of {len(statement):,} characters")
                yield position, statement
            position = item.end()

    def _statement(self, position: int, text: str) -> None:
        if not text.startswith("."):
            self._instruction(position, text)
        elif text.startswith(".reg"):
            self._registers(position, text)
        elif text.startswith((".shared", ".extern")):
            self._variable(text, position, self.kernel.shared)
        elif not text.startswith(_IGNORED):
            raise self.error(position, f"the directive {shown(text.split()[0])} is not supported")

    # ---- declarations --------------------------------------------------------------------------

    def _parameters(self, text: str, position: int) -> None:
        known = self.kernel.parameters
        for parameter in filter(None, (part.strip() for part in text.split(","))):
            self._variable(_POINTER.sub("", parameter), position, known)

    def _variable(self, text: str, position: int, known: dict[str, Variable]) -> None:
        """Append a declared variable to those of its space."""
        match = _VARIABLE.match(text.strip())
        if match is None or match["type"] not in BYTES:
            raise self.error(position, f"the declaration {shown(text)} is not understood")
        width = BYTES[match["type"]]
        align = self._integer(match["align"] or str(width), position)
        count = (match["array"] or "[1]").strip("[] \t\n")
        value = b""
        if match["value"]:
            mask, name = (1 << 8 * width) - 1, match["name"]
            words = re.findall(r"[^{},\s]+", match["value"])
            for part in [self._operand(word, position) for word in words]:
                if not isinstance(part, Immediate) or isinstance(part.value, float):
                    raise self.error(position, f"the value of {name} does not consist of integers")
                value += (part.value & mask).to_bytes(width, "little")
            count = count or str(len(words))
        size = self._integer(count, position) * width if count else None
        if not width or align < 1 or align & (align - 1) or max(align, size or 0) > _LARGEST:
            raise self.error(position, f"{match['name']} has an illegal size or alignment")
        place = -(-end_of(known) // align) * align
        elements = (size or 0) // width if match["array"] else 0
        variable = Variable(match["name"], size, align, place, value, match["type"], elements)
        known[variable.name] = variable

    def _integer(self, text: str, position: int) -> int:
        """Return the number of decimal digits."""
        if len(text) > 20:
            raise self.error(position, f"the number {shown(text)} has more than 64 bits")
        return int(text)

    def _registers(self, position: int, text: str) -> None:
        words = text.replace(",", " ").split()[1:]
        kind, names = "".join(words[:1]).lstrip("."), words[1:]
        if kind not in BYTES:
            raise self.error(position, f"registers of type {shown(kind)} are not known")
        scope = self.scopes[-1]
        for name in names:
            match = _DECLARED.match(name)
            if match is None:
                raise self.error(position, f"the register {shown(name)} is not understood")
            scope.types[f"{match[1]}<>" if match[1] else match[3]] = kind

    def _symbol(self, name: str, position: int) -> Name:
        """Return a name that is not a register; look up a variable outside the entry."""
        kernel = self.kernel
        known = (kernel.parameters, kernel.shared, kernel.globals)
        if name.startswith("%") or any(name in each for each in known):
            return Name(name)
        pattern = (
            rf"^[ \t]*((?:\.\w+\s+)*\.(shared|global|const)\s[^;]*?\s{re.escape(name)}\b[^;]*);"
        )
        match = re.search(pattern, self.text, re.MULTILINE)
        if match is not None:  # otherwise a label, or undefined: its user reports it
            space = kernel.shared if match[2] == "shared" else kernel.globals
            self._variable(match[1], match.start(1), space)
        return Name(name)

    # ---- instructions --------------------------------------------------------------------------

    def _instruction(self, position: int, text: str) -> None:
        guard = None
        line = self.line(position)
        whole = " ".join(text.split())
        if predicate := _GUARD.match(text):
            register = self._register(predicate[2])
            if register is None or register.type != "pred":
                raise self.error(position, f"{shown(predicate[2])} is not a predicate")
            guard, text = (register, bool(predicate[1])), text[predicate.end() :]
        match = _OPCODE.match(text)
        op = tuple(match[0].split(".")) if match else ()
        if match is None or (len(op) == 1 and op[0] not in _BARE):
            raise self.error(position, f"the statement {shown(whole)} is not understood")
        rest = text[match.end() :]
        if op[0] == "bra":
            operands: tuple[Operand, ...] = (Name(rest.strip()),)
        else:
            operands = tuple(self._operand(each, position) for each in _OPERAND.findall(rest))
        inst = Instruction(op, operands, guard, line, whole)
        if op[0] == "bra":
            self.jumps.append((len(self.kernel.instructions), inst, list(self.scopes)))
        self.kernel.instructions.append(inst)

    def _resolved(self, inst: Instruction, scopes: list[_Scope]) -> Instruction:
        """Return a branch with the label of the innermost braces around it that have one."""
        target = inst.operands[0]
        for scope in reversed(scopes):
            if isinstance(target, Name) and target.name in scope.labels:
                return replace(inst, operands=(Name(scope.labels[target.name]),))
        raise PtxError(f"line {inst.line}: {shown(inst.text)} goes to an undefined label")

    def _register(self, name: str) -> Register | None:
        for scope in reversed(self.scopes):
            if name in scope.known:
                return scope.known[name]
            kind = scope.types.get(name) or scope.types.get(_NUMBERED.sub("<>", name))
            if kind is not None:
                register = scope.known[name] = Register(len(self.kernel.registers), name, kind)
                self.kernel.registers.append(register)
                return register
        return None

    def _operand(self, text: str, position: int) -> Operand:
        known = self.numbers.get(text)
        if known is not None:
            return known
        text = text.strip()
        if text[:1] == "[":
            return self._address(text[1:-1], position)
        if text[:1] != "{" and "|" not in text:
            return self._single(text, position)
        parts = text[1:-1].split(",") if text[:1] == "{" else text.split("|")
        return Vector(tuple(self._single(x, position) for x in parts))

    def _single(self, text: str, position: int) -> Register | Immediate | Name:
        """Return a register, a number or a symbol: the parts of vectors and addresses."""
        text = text.strip()
        if _NUMBER.match(text):
            number = _number(text)
            if number is None:
                raise self.error(position, f"the number {shown(text)} is not one of 64 bits")
            immediate = self.numbers[text] = Immediate(number)
            return immediate
        register = self._register(text)
        if register is not None:
            return register
        if text.startswith("!"):
            raise self.error(position, f"the negated operand {shown(text)} is not supported")
        if not re.fullmatch(r"[\w$%.]+", text):
            raise self.error(position, f"the operand {shown(text)} is not understood")
        return self._symbol(text, position)

    def _address(self, text: str, position: int) -> Address:
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise self.error(position, f"the address {shown(f'[{text}]')} is not understood")
        base, offset, coordinates = match.groups()
        parts = () if coordinates is None else coordinates.split(",")
        number = self._single(offset, position) if offset else Immediate(0)
        if not isinstance(number, Immediate) or not -(1 << 31) <= number.value < 1 << 32:
            raise self.error(position, f"the offset {shown(offset)} is not a number of 32 bits")
        first, *others = (self._single(x, position) for x in (base, *parts))
        return Address(first, int(number.value), tuple(others))


def _number(text: str) -> int | float | None:
    """Return a constant of the PTX ISA, section 4.5; None if it is not one."""
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("-").rstrip("U")
    kind = text[:2].lower()
    if kind in ("0f", "0d"):
        (number,) = struct.unpack(f">{kind[1]}", bytes.fromhex(text[2:]))
        return sign * float(number)
    if "." in text:
        return sign * float(text)
    base = {"0x": 16, "0b": 2}.get(kind, 8 if text.startswith("0") and len(text) > 1 else 10)
    if len(text) > 66 or (base == 8 and set(text) & set("89")):
        return None
    value = int(text, base)
    return sign * value if value < 1 << 64 else None
