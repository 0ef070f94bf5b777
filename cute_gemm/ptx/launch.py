"""A launch: PTX, a grid and arguments -> the kernel executed on NumPy arrays."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from cute_gemm.errors import PtxError, shown
from cute_gemm.ptx.access import shape_of
from cute_gemm.ptx.bulk import Map
from cute_gemm.ptx.clocks import OrderedMemory
from cute_gemm.ptx.code import Code
from cute_gemm.ptx.epochs import EpochMemory, WarpMemory
from cute_gemm.ptx.flow import at_warp
from cute_gemm.ptx.machine import Machine
from cute_gemm.ptx.memory import SHARED_GUARD, WARP, Array, GlobalMemory, Region
from cute_gemm.ptx.parser import BYTES, Immediate, Kernel, Variable, end_of, parse
from cute_gemm.ptx.program import Program
from cute_gemm.ptx.record import Accesses, Boxes, Recorder
from cute_gemm.ptx.tensor import Tensor
from cute_gemm.ptx.waiting import WaitingMachine, needed

#: Threads that are executed together: enough to amortise NumPy's time per call, and few enough that
#: registers stay in the caches.
_LANES = 16384
#: Bytes of shared memory of CTAs that are executed together, if accesses have stamps.
_SHARED = 1 << 22
#: Bytes of a buffer up to which the gaps between its elements are set.
_FILLED = 1 << 28
#: Largest extents of a grid and of a CTA on a GPU.
_MOST = {"grid": ((1 << 31) - 1, 65535, 65535), "block": (1024, 1024, 64)}
#: Largest number of 4-byte registers of all lanes together.
_REGISTERS = 1 << 26
#: Callback that gets the number of ended CTAs of a launch and their total, for a progress display.
PROGRESS: ContextVar[Callable[[int, int], None] | None] = ContextVar("PROGRESS", default=None)


@dataclass(frozen=True)
class Buffer:
    """A NumPy array as a kernel's argument: its address, in separate memory.

    The kernel may write only its elements, and read from the first to the last of them. The results
    are copied back into the array when the kernel has ended.

    Attributes
    ----------
    array
        An array with any strides.
    name
        Its name in faults.
    residue
        Its address modulo 256; by default that of the array.
    """

    array: Array
    name: str
    residue: int | None = None

    @property
    def span(self) -> tuple[int, int]:
        """Bytes before and after the start of the first element that elements occupy."""
        steps = [(n - 1) * s for n, s in zip(self.array.shape, self.array.strides, strict=True)]
        if 0 in self.array.shape:
            return 0, 0
        before = -sum(step for step in steps if step < 0)
        return before, sum(step for step in steps if step > 0) + self.array.itemsize

    @property
    def place(self) -> tuple[int, int, bool]:
        """Bytes, address of the first modulo 256, and whether all of them belong to elements."""
        before, after = self.span
        residue = self.array.ctypes.data if self.residue is None else self.residue
        dense, size = True, self.array.itemsize
        steps = zip(map(abs, self.array.strides), self.array.shape, strict=True)
        for step, extent in sorted(steps):
            if step and extent > 1:
                dense, size = dense and step == size, step * extent
        return before + after, (residue - before) % 256, dense

    def bring(self, memory: GlobalMemory) -> None:
        """Copy the array into global memory, and mark the bytes that may be written."""
        content, whole = memory.content(self.name), self.place[2]
        if not whole and len(content) <= _FILLED:
            content[:] = 255  # NaN in bytes that are never written
        if self.array.size:
            self.elements(content)[...] = self.array
        if self.array.size and not whole:
            each, strides = (*self.array.shape, self.array.itemsize), (*self.array.strides, 1)
            flags = memory.writable(self.name)
            np.ndarray(each, np.uint8, flags, self.span[0], strides)[...] = 255

    def elements(self, content: Array) -> Array:
        """Return the array in these bytes."""
        return np.ndarray(
            self.array.shape, self.array.dtype, content, self.span[0], self.array.strides
        )


@dataclass(frozen=True)
class TensorMap:
    """A tensor map as a kernel's argument, 128 bytes that only TMA reads.

    Attributes
    ----------
    buffer
        The name of the `Buffer` that it describes, from its first element on.
    tensor
        The tensor; None for an unused map.
    """

    buffer: str
    tensor: Tensor | None


Argument = Buffer | TensorMap | int | float | bytes | np.generic


@dataclass(frozen=True)
class Execution:
    """The result of a launch.

    Attributes
    ----------
    kernel
        The instructions, to which indices refer.
    steps
        Executed instructions, each for a batch of CTAs and lanes on the same path.
    regions
        The buffers, as offsets from the first global address (`memory.GLOBAL`).
    accesses
        Memory instructions by warp; None unless requested.
    counts
        Instructions of warps by opcode; None unless requested.
    boxes
        Bulk tensor copies by buffer and direction; None unless requested.
    """

    kernel: Kernel
    steps: int
    regions: tuple[Region, ...]
    accesses: Accesses | None
    counts: dict[str, int] | None
    boxes: tuple[Boxes, ...] | None


def run(
    ptx: str, entry: str | None, grid: Sequence[int], block: Sequence[int], shared_bytes: int,
    arguments: Sequence[Argument], *, record: bool = False, watch: bool = True,
    most_steps: int | None = None, lanes: int = _LANES, cluster: int = 1,
    dependent: bool = False,
) -> Execution:  # fmt: skip
    """Execute a kernel, all CTAs in order, one batch at a time.

    Parameters
    ----------
    ptx, entry
        The text, and the name of the entry; None if there is only one.
    grid, block
        CTAs along x, y, z and threads of a CTA; missing extents are 1.
    shared_bytes
        Dynamic shared memory of a CTA.
    arguments
        One for each parameter: a `Buffer`, a `TensorMap`, a number, or the bytes of a struct.
    record
        Whether to record every access and to count instructions.
    watch
        Whether shared memory is checked for races, uninitialised reads, and copies that have not
        been waited for, and global memory for stores of two CTAs to the same bytes. Bounds,
        alignment, registers and barriers are always checked.
    most_steps
        Instructions after which a kernel is considered endless; by default 20,000,000, or 500,000
        in which no thread stores, passes a barrier or accesses another address.
    lanes
        Threads that are executed together, if a CTA does not have more.
    cluster
        CTAs of a cluster, along x.
    dependent
        Whether it may start before the previous launch has ended, for which it then must wait.

    Raises
    ------
    PtxError
        For text that is not understood, or an unsupported instruction.
    FaultError
        For an illegal action of the kernel; the arrays are unchanged.
    """
    kernel, arrays = _placed(parsed(ptx, entry), shared_bytes)
    grid, block = _three(grid, "grid"), _three(block, "block")
    buffers = [x for x in arguments if isinstance(x, Buffer)]
    variables = _variables(kernel.globals)
    places = {buffer.name: buffer.place for buffer in buffers}
    places |= {"variables": (len(variables), 0, True)} if kernel.globals else {}
    memory = GlobalMemory(places)
    for buffer in buffers:
        buffer.bring(memory)
    if kernel.globals:
        memory.content("variables")[:] = variables
    recorder = Recorder() if record else None
    if cluster < 1 or grid[0] % cluster:
        raise PtxError(f"cluster={cluster} does not divide the {grid[0]} CTAs of the grid along x")
    waits = needed(kernel)
    if waits and math.prod(block) % WARP:
        raise PtxError(f"block={tuple(block)!r} must be a multiple of {WARP} threads")
    kind = WaitingMachine if waits else Machine
    machine = kind(grid, block, memory, most_steps, recorder, len(kernel.registers), cluster)
    machine.dependent = dependent
    machine.maps = _maps(kernel, arguments, memory)
    code = Code(kernel, machine, _packed(kernel, arguments, memory))
    tell = PROGRESS.get()
    with np.errstate(all="ignore"):
        program = Program(code, watch)
        ctas, size = math.prod(grid), max((array.end for array in arrays), default=0)
        fitting = max(1, min(lanes, _REGISTERS // max(1, len(machine.values))) // machine.threads)
        in_warps = any(map(at_warp, kernel.instructions))
        if waits or in_warps:
            fitting = max(1, min(fitting, _SHARED // max(1, size)))
        fitting = max(1, fitting // cluster) * cluster
        granule = _granule(kernel, "shared")
        if watch and not _ordered(kernel):
            elements = [tensor_map.size for tensor_map in machine.maps.values()]
            memory.watch(min([_granule(kernel, "global"), *elements]))
        made_of = OrderedMemory if waits else WarpMemory if in_warps else EpochMemory
        for first in range(0, ctas, fitting):
            count = min(fitting, ctas - first)
            if tell is not None:
                tell(first, ctas)
            code.known.clear()
            watched = watch and size > 0
            shared = made_of(count, machine.threads, arrays, granule, watched, cluster)
            program.reset()
            machine.begin(first, count, shared, code.specials)
            machine.execute(program.pieces)
    for buffer in buffers:
        if buffer.array.size and buffer.array.flags.writeable:
            buffer.array[...] = buffer.elements(memory.content(buffer.name))
    done = kernel, machine.steps, tuple(memory.regions)
    if recorder is None:
        return Execution(*done, None, None, None)
    counts = recorder.counts(kernel.instructions)
    return Execution(*done, recorder.accesses(), counts, recorder.boxes())


@lru_cache(maxsize=16)
def parsed(ptx: str, entry: str | None) -> Kernel:
    """Return an entry of a text; the last few are cached."""
    return parse(ptx, entry)


def _three(extents: Sequence[int], name: str) -> tuple[int, int, int]:
    """Return extents along x, y and z."""
    x, y, z = (*(int(extent) for extent in extents[:3]), 1, 1)[:3]
    triple = x, y, z
    if len(extents) > 3 or min(triple) < (1 if name == "block" else 0):
        raise PtxError(f"{name}={tuple(extents)!r} is not one to three extents")
    if name == "block" and math.prod(triple) > 1024:
        raise PtxError(f"block={tuple(extents)!r} has more than 1024 threads")
    if any(map(operator.gt, triple, _MOST[name])):
        most = ", ".join(f"{extent:,}" for extent in _MOST[name])
        raise PtxError(f"{name}={tuple(extents)!r} does not fit; expected at most {most} (x, y, z)")
    return triple


def _variables(variables: dict[str, Variable]) -> Array:
    """Return the bytes of the global variables that the kernel names."""
    content = np.zeros(end_of(variables), np.uint8)
    for v in variables.values():
        content[v.offset : v.offset + len(v.value)] = np.frombuffer(v.value, np.uint8)
    return content


def _placed(kernel: Kernel, dynamic: int) -> tuple[Kernel, list[Region]]:
    """Return the kernel with its arrays in shared memory apart from each other, and their places.

    The dynamic part begins at its alignment; all arrays that use it begin there.
    """
    static = [array for array in kernel.shared.values() if array.size is not None]
    unsized = [array for array in kernel.shared.values() if array.size is None]
    align = max((array.align for array in unsized), default=1)
    end = -(-kernel.static_shared // align) * align
    whole = Variable(unsized[0].name if unsized else "dynamic shared memory", dynamic, align, end)
    arrays, regions = {}, []
    for number, array in enumerate([*static, whole] if unsized or dynamic else static):
        begin = array.offset + -(-number * SHARED_GUARD // array.align) * array.align
        regions.append(Region(array.name, begin, begin + (array.size or 0), True))
        arrays[array.name] = replace(array, offset=begin)
    arrays |= {array.name: arrays[whole.name] for array in unsized}
    return replace(kernel, shared=arrays), regions


def _ordered(kernel: Kernel) -> bool:
    """Return whether CTAs may wait for each other: one stores what another one reads."""
    words = {"acquire", "acq_rel", "volatile", "relaxed"}
    return any(inst.op[0] == "atom" or words & set(inst.op) for inst in kernel.instructions)


def _granule(kernel: Kernel, space: str) -> int:
    """Return the narrowest possible access to shared memory, or store to global, in bytes."""
    widths = [16]
    for inst in kernel.instructions:
        shape = shape_of(inst) if inst.op[0] in ("ld", "st") else None
        counts = (space, inst.op[0]) != ("global", "ld")
        if shape is not None and shape[0] in (space, "") and counts:
            widths.append(shape[1] * BYTES[shape[2]])
        elif space == "shared" and inst.op[:2] == ("cp", "async"):
            widths += [width for width in (4, 8) if Immediate(width) in inst.operands[2:3]]
    return min(widths)


def _packed(kernel: Kernel, arguments: Sequence[Argument], memory: GlobalMemory) -> bytes:
    """Return the bytes of the parameters; ``PtxError`` if an argument does not fit its own."""
    parameters = list(kernel.parameters.values())
    if len(arguments) != len(parameters):
        raise PtxError(f"{len(arguments)} arguments; {kernel.name} takes {len(parameters)}")
    block = bytearray(end_of(kernel.parameters))
    for position, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True)):
        width = parameter.size or 0
        match argument:
            case Buffer():
                raw = struct.pack("<Q", memory.address(argument.name) + argument.span[0])
            case np.generic():
                raw = argument.tobytes()
            case TensorMap():
                raw = bytes(width)
            case int() | float():
                raw = _number(argument, parameter, position)
            case _:
                raw = argument
        if len(raw) != width:
            raise PtxError(
                f"argument {position} of {kernel.name} has {len(raw)} bytes; its parameter {width}"
            )
        block[parameter.offset : parameter.offset + width] = raw
    return bytes(block)


def _number(argument: int | float, parameter: Variable, position: int) -> bytes:
    """Return a number in the type of its parameter; ``PtxError`` if it does not fit."""
    kind, name, what = parameter.type, shown(parameter.name), f"argument {position} is {argument!r}"
    if parameter.count or kind == "pred":
        of = f"{parameter.count} x .{kind}" if parameter.count else f".{kind}"
        raise PtxError(f"{what}; parameter {name} is {of} and takes no number")
    bits = 8 * BYTES[kind]
    if isinstance(argument, float) and (kind[0] in "us" or bits not in (32, 64)):
        raise PtxError(f"{what}; parameter {name} is .{kind}: expected an integer")
    if isinstance(argument, float) or kind in ("f32", "f64"):
        try:
            return struct.pack("<d" if bits == 64 else "<f", argument)
        except OverflowError as error:
            raise PtxError(
                f"{what[:80]}, which is beyond the numbers of .{kind}, the type of parameter {name}"
            ) from error
    if not -(1 << bits - 1) <= argument < 1 << bits:
        raise PtxError(
            f"argument {position} is an integer of {argument.bit_length()} bits; parameter "
            f"{name} is .{kind} and takes {bits}"
        )
    return (argument & (1 << bits) - 1).to_bytes(bits // 8, "little")


def _maps(kernel: Kernel, arguments: Sequence[Argument], memory: GlobalMemory) -> dict[int, Map]:
    """Return the tensor maps among the arguments, by the places of their parameters."""
    buffers = {buffer.name: buffer for buffer in arguments if isinstance(buffer, Buffer)}
    maps = {}
    for parameter, argument in zip(kernel.parameters.values(), arguments, strict=False):
        if isinstance(argument, TensorMap) and argument.tensor is not None:
            begin = memory.region(argument.buffer).begin + buffers[argument.buffer].span[0]
            if any(x % 16 for x in (begin, *argument.tensor.steps)):
                raise PtxError(
                    f"the tensor map of {argument.buffer} begins at {begin:#x} and has steps of "
                    f"{', '.join(map(str, argument.tensor.steps))} bytes; expected multiples of 16"
                )
            maps[parameter.offset] = Map(argument.tensor, argument.buffer, begin)
    return maps
