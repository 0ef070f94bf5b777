"""Translation units of configs, in the emitter protocol of ``cutlass_library``.

An `Operation` describes the computation of a kernel; an emitter turns it into C++ text with
``emit(operation)``. Only integers, enum tags and layout types reach that text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar

from cute_gemm.cute.layout import Layout, tuple_cpp
from cute_gemm.dtypes import DTYPES, DType
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION, Epilogue
from cute_gemm.problem.operation import Operation
from cute_gemm.problem.parts.scales import BLOCK, SCALES, rows_mode
from cute_gemm.toolchain.signature import cpp_type, gemm_signature, scalar_cpp

#: First part of the config in every kernel's text (`Emitter.template`).
TYPES = """\
using namespace cute;

struct Config {
  using ElementA = ${element_a};
  using ElementB = ${element_b};
  using ElementC = ${element_c};
  using Accumulator = ${accumulator};
  using Epilogue = ${epilogue};
"""


#: Bytes per thread that ptxas may spill. The values of an expression may need more registers
#: than a tile leaves: an epilogue of a user is slower then, and no error.
SPILLS, SPILLS_OF_EPILOGUES = 16, 1 << 16


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """C++ text with one ``extern "C" __global__`` entry named ``symbol``.

    ``folders``: include directories in addition to those of the package and its headers;
    ``spills``: the most bytes per thread that ptxas may spill. A few bytes are harmless; a kernel
    that lacks registers spills hundreds.
    """

    source: str
    symbol: str
    folders: tuple[Path, ...] = ()
    spills: int = SPILLS


def epilogue_type(epilogue: Epilogue, accumulator: DType, out: DType) -> str:
    """Return the C++ type of an epilogue, in a scope that declares Accumulator and ElementC.

    ``accumulator``, ``out``: the types of these two.
    """
    tensors = (*epilogue.operands, *epilogue.results)
    types = (cpp_type(DTYPES[tensor.dtype]) for tensor in tensors)
    scalar = scalar_cpp(accumulator, out).format("")
    return f"{epilogue.functor}<{', '.join((scalar, 'ElementC', *types))}>"


def epilogue_params(
    epilogue: Epilogue, prefix: str = "Config::", extents: str = "m, n", moved: str = ""
) -> str:
    """Return the declaration of an epilogue's parameters from those of the entry.

    ``extents``: C++ of C's extents along M and N; ``moved``: ``"M"`` or ``"N"`` if C begins at a
    group along it.
    """
    tensors = [(x.name, x.amax) for x in (*epilogue.operands, *epilogue.results)]
    at = f" + group.begin * {{0}}_{moved.lower()}" if moved else ""
    operands = (
        f", {{{x}, {extents}}}"
        if amax
        else f", {{{x}{at.format(x)}, {x}_m, {x}_n, {x}_l, {extents}}}"
        for x, amax in tensors
    )
    values = ", ".join(("alpha, beta, alpha_ptr, beta_ptr" + "".join(operands), *epilogue.numbers))
    return f"typename {prefix}Epilogue::Params const epilogue{{{values}}};"


def entry(
    config: Any, call: str, *, prefix: str = "Config::", bounds: str = "", begin: str | None = None
) -> str:
    """Return a kernel's entry, in which each layer of the grid calls ``call`` for one GEMM.

    In a grouped GEMM each CTA calls it for one tile of a group. The call may use the number of the
    matrix or group, ``product``, and the epilogue's parameters, ``epilogue``. It has a
    placeholder, ``{}``, for the argument with the tile of its group, followed by block
    scales: `scale_arguments`.

    ``prefix``: scope of ElementA, ElementB, ElementC, Accumulator and Epilogue; ``bounds``:
    arguments of ``__launch_bounds__``, by default threads and CTAs of a multiprocessor; ``begin``:
    first statements, by default those that find the matrices of a CTA.
    """
    operation, moved = config.operation, ""
    if begin is None and operation.groups:
        begin, moved = _of_group(config), operation.groups.replace("K", "")
    elif begin is None:
        begin = _OF_BATCH
    if operation.block_scales:
        begin = f"  int const depth = k;\n{begin}{_begins_of_scales(operation)}"
    signature, scaled = gemm_signature(operation), ", blockIdx.x" * bool(operation.block_scales)
    return f"""\
extern "C" __global__ void __launch_bounds__({bounds or f"{config.threads}, {config.min_ctas}"})
{config.name}(
    {signature.cpp(prefix)}) {{
{begin}  {epilogue_params(operation.epilogue, prefix, moved=moved)}
  {call.replace("{}", ", group.cta" if operation.groups else scaled, 1)}
}}
"""


_OF_BATCH = """\
  uint32_t const batch = blockIdx.y + blockIdx.z * gridDim.y;
  if (batch >= l) return;
  uint32_t const product = batch / slices, slice = batch % slices;
  if (k_last > 0 && slice == slices - 1) k = k_last;
  A += product * batch_a + slice * slice_a;
  B += product * batch_b + slice * slice_b;
  C += batch * batch_c;
"""


def _begins_of_scales(operation: Operation) -> str:
    """Return the code that finds a CTA's block scales, for `depth` of k in a slice."""
    lines = []
    for name in operation.block_scales:
        place = f"product * {name}_l"
        if not operation.groups:
            place += f" + slice * (depth / {BLOCK}) * {name}_k"
        elif rows_mode(name) == operation.groups:
            place += f" + group.begin * {name}_mn"
        lines.append(f"  {name} += {place};\n")
    return "".join(lines)


def scale_arguments(operation: Operation, swapped: bool) -> str:
    """Return the arguments for block scales of A and B, or of B and A; empty without any."""
    if not operation.block_scales:
        return ""
    each = [
        f"cute_gemm::BlockScales<{rows}>{{{f'{name}, {name}_mn, {name}_k' if rows else ''}}}"
        for name, rows in zip(SCALES, operation.scales, strict=True)
    ]
    return "".join(f", {x}" for x in each[:: -1 if swapped else 1])


def _of_group(config: Any) -> str:
    """Return the code that finds a CTA's group, or stores zeros after the last group."""
    operation, tile = config.operation, config.tile
    ragged, units = operation.groups, dict(zip("AB", operation.majors, strict=False))
    units["C"] = "N" if operation.row_major else "M"
    begins = []
    for name, modes in (("A", "MK"), ("B", "NK"), ("C", "MN")):
        place = f"group.number * batch_{name.lower()}"
        if ragged in modes:
            unit = units[name] == ragged or (units[name] == "MN" and ragged != "K")
            place += f" + group.begin * {1 if unit else f'ld{name.lower()}'}"
        begins.append(f"  {name} += {place};\n")
    kind, zeros = f"cute_gemm::kRagged{ragged}, {tile[0]}, {tile[1]}", ""
    if operation.zero_tail:
        kind += ", true"
        zeros = f"""\
  if (product == l) {{
    group.store_zeros<{config.threads}, {cpp_bool(operation.row_major)}>(C, ldc, m, n);
    return;
  }}
"""
    return f"""\
  cute_gemm::CtaGroup<{kind}> const group(offsets, \
l, m, n, k);
  if (group.number < 0) return;
  int const product = group.number;
{"".join(begins)}  {ragged.lower()} = group.size;
{zeros}"""


class Emitter:
    """An emitter of one config's kernel and of its proof, in the protocol of cutlass_library.

    The config has ``name``, ``kernel``, ``raster`` and ``operation``. Both units contain
    ``template``, includes and types. The proof has ``header`` before it, and ``cute``
    after it: the computations of C++ CuTe. A name in the text stands for one of `values`, or
    for an attribute of the config or an item of one: ``${operation.promoted}``, ``${values.0}``.
    """

    template: ClassVar[str]
    header: ClassVar[str] = "common/proof.cuh"
    cute: ClassVar[str] = ""
    #: Last part of the kernel's text.
    end: ClassVar[str] = "\n${entry}"

    def __init__(self, config: Any) -> None:
        self.config = config

    def values(self) -> dict[str, Any]:
        """Return values of names in the text that are not attributes of the config."""
        raise NotImplementedError

    def layouts(self) -> dict[str, Layout]:
        """Return the layouts of the config that Python evaluated, by their names in C++."""
        raise NotImplementedError

    def facts(self) -> list[tuple[str, str]]:
        """Return everything that Python evaluated and C++ must compute too, with names.

        By default these are the types and `layouts`.
        """
        facts = element_proofs(self.config)
        for name, layout in self.layouts().items():
            facts += layout_proofs(name, layout, layout.extents)
        return facts

    @property
    def spills(self) -> int:
        """The most bytes that ptxas may spill, without an epilogue of a user."""
        return SPILLS

    def unit(self) -> TranslationUnit:
        """Return the kernel."""
        operation = self.config.operation
        plain = operation.epilogue == LINEAR_COMBINATION
        spills = self.spills if plain else SPILLS_OF_EPILOGUES
        return TranslationUnit(self.emit(operation), self.config.name, spills=spills)

    def proof(self) -> TranslationUnit:
        """Return a unit that compiles if all facts hold; it has nothing to run."""
        asserts = "\n".join(f'static_assert({fact}, "{name}");' for fact, name in self.facts())
        end = f'{self.cute}\n{asserts}\n\nextern "C" __global__ void proof() {{}}\n'
        text = self.emit(self.config.operation, end)
        return TranslationUnit(f'#include "{self.header}"\n{text}', "proof")

    def emit(self, operation: Operation, end: str | None = None) -> str:
        """Return the translation unit of an operation; ``end``: in place of the entry."""
        from cutlass_library import SubstituteTemplate

        template, (a, b) = self.template + (self.end if end is None else end), operation.factors
        values = {
            "element_a": cpp_type(a),
            "element_b": cpp_type(b),
            "element_c": cpp_type(operation.c),
            "accumulator": cpp_type(operation.accumulator),
            "epilogue": epilogue_type(operation.epilogue, operation.accumulator, operation.c),
            "major_k_a": operation.majors[0] == "K",
            "major_k_b": operation.majors[1] == "K",
            "major_n_c": operation.row_major,
            "conj_a": operation.conj[0],
            "conj_b": operation.conj[1],
            "types": "{}, majors A {}, B {}, C {}".format(
                " x ".join(dict.fromkeys(operation.dtypes[:2])), *operation.majors
            ),
            **self.values(),
        }
        named = {}
        for path in re.findall(r"\$\{([\w.]+)\}", template):
            first, *rest = path.split(".")
            value = values[first] if first in values else getattr(self.config, first)
            named[path] = cpp(reduce(_part, rest, value))
        return operation.epilogue.source + str(SubstituteTemplate(template, named))


def _part(value: Any, name: str) -> Any:
    return value[int(name)] if name.isdigit() else getattr(value, name)


def cpp(value: Any) -> str:
    """Return a value as C++, a tuple as a static shape; text is already C++."""
    if isinstance(value, bool):
        return cpp_bool(value)
    if value is None:
        return "void"
    if isinstance(value, tuple):
        return cpp_shape(value)
    return str(value.cpp()) if hasattr(value, "cpp") else str(value)


def element_proofs(config: Any) -> list[tuple[str, str]]:
    """Return facts that hold if the types of a config are those of the unit."""
    operation = config.operation
    sizes = {f"Element{x}": getattr(operation, x.lower()).bytes for x in "ABC"}
    return [(f"sizeof(Config::{name}) == {size}", name) for name, size in sizes.items()]


def layout_proofs(name: str, layout: Layout, extents: tuple[int, ...]) -> list[tuple[str, str]]:
    """Return facts that hold if ``Config::name`` has these extents and Python's offsets."""
    cpp = f"Config::{name}{{}}"
    # Both sides evaluate: types with equal text do not prove that Python evaluates them so.
    offsets = (int(layout(1 << bit)) for bit in range((layout.size - 1).bit_length()))
    return [
        (cpp_extents(cpp, extents), f"{name}: extents"),
        (f"cute_gemm::has_offsets({', '.join((cpp, *map(str, offsets)))})", f"{name}: offsets"),
    ]


def cpp_extents(cpp: str, extents: tuple[int, ...]) -> str:
    """Return the fact that a C++ layout has these extents."""
    return " && ".join(f"size<{mode}>({cpp}) == {extent}" for mode, extent in enumerate(extents))


def cpp_shape(extents: tuple[int, ...]) -> str:
    """Return a static shape as a C++ type."""
    return tuple_cpp(tuple(extents), "Shape")


def cpp_bool(value: bool) -> str:
    """Return a C++ literal."""
    return "true" if value else "false"
