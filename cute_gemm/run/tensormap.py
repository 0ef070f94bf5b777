"""Tensor maps, which describe matrices to the TMA unit."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from cute_gemm.ptx.tensor import Tensor
from cute_gemm.run.driver import checked, entered, load_driver

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix

#: Bytes of a tensor map.
SIZE = 128
#: Map of groups: extent of the mode that cuts boxes, and a stride in bytes, `_LONG` of which make
#: 2^64, where addresses wrap around. Both as in ``InGroup``.
_LONG, _WRAP = 1 << 30, 1 << 34
#: Names of the driver for types that have other names.
_NAMES = {"tf32": "TFLOAT32", **dict.fromkeys(("int8", "float8_e4m3fn", "float8_e5m2"), "UINT8")}


@dataclass(frozen=True)
class TensorMap:
    """A matrix, or a batch, in boxes: ``box`` in its modes, ``swizzle`` in bytes.

    The two matrices of `of_pairs` of `problem.parts.slices` are a
    separate mode. ``kind``: the type in which it is loaded, by default its own.
    ``in_groups``: groups end anywhere along the other mode, and a box ends with its group. That
    mode then occurs twice, with one stride: with `_LONG` elements, at whose end TMA cuts the box,
    and unchanged. With a fourth mode addresses wrap around to the matrix (``InGroup`` of
    ``templates/tma/pipeline.cuh``).
    """

    matrix: Matrix
    box: tuple[int, int]
    swizzle: int
    kind: str = ""
    in_groups: bool = False

    @cached_property
    def tensor(self) -> Tensor:
        """The map without its address."""
        matrix = self.matrix
        size, unit = matrix.element.bytes, matrix.unit
        batch = matrix.l // matrix.slices if matrix.batch_stride else 1
        # A single row, or matrix, may have any step.
        run = -(-max(matrix.shape[unit] * size, 1) // 16) * 16
        step = matrix.ld * size if matrix.shape[1 - unit] > 1 else run
        layer = matrix.batch_bytes if batch > 1 else step
        if self.in_groups:
            extents = max(matrix.shape[unit], 1), _LONG, matrix.shape[1 - unit] + 1, _LONG + 1
            box = self.box[unit], self.box[1 - unit], 1, 1
            kind = self.kind or matrix.dtype
            return Tensor(kind, extents, (step, step, _WRAP - step), box, self.swizzle)
        # The two columns of pairs are a separate mode.
        pair = [(matrix.slices, matrix.slice_stride * size)] * (matrix.slices > 1)
        others = [*pair, (max(batch, 1), layer)]
        modes = max(matrix.shape[unit], 1), max(matrix.shape[1 - unit], 1), *(x for x, _ in others)
        steps = step, *(x for _, x in others)
        in_batch = self.box[unit], self.box[1 - unit], *(1 for _ in others)
        return Tensor(self.kind or matrix.dtype, modes, steps, in_batch, self.swizzle)

    @cached_property
    def _arguments(self) -> tuple[Any, ...]:
        """The arguments of the driver call without the address."""
        driver, tensor = load_driver(), self.tensor
        words = [driver.cuuint64_t(x) for x in tensor.extents]
        steps = [driver.cuuint64_t(x) for x in tensor.steps]
        boxes = [driver.cuuint32_t(x) for x in tensor.box]
        ones = [driver.cuuint32_t(1)] * len(words)
        kind, rest = _enumerators(tensor.dtype, tensor.swizzle)
        return kind, words, steps, boxes, ones, rest

    def encode(self, address: int) -> bytes:
        """Return the map of the matrix at an address; LaunchError if the driver refuses it."""
        kind, extents, steps, boxes, ones, rest = self._arguments
        (encoded,) = checked(
            load_driver().cuTensorMapEncodeTiled(
                kind, len(extents), address, extents, steps, boxes, ones, *rest
            ),
            lambda: f"describing {self.matrix.name} = {self.matrix} to TMA in boxes {self.box}",
        )
        return struct.pack("=16Q", *map(int, encoded.opaque))


@lru_cache(maxsize=64)
def _enumerators(dtype: str, swizzle: int) -> tuple[Any, tuple[Any, ...]]:
    """Return the driver's names of a type, and of the last arguments of a map."""
    driver = load_driver()
    name = _NAMES.get(dtype, dtype.upper())
    span = f"{swizzle}B" if swizzle else "NONE"
    return getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}"), (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{span}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )


class TensorMaps:
    """The maps of a launch's matrices, in memory that the driver reads at a launch.

    ``places``: their addresses in it. `set_addresses` may be called on any thread and with any
    current context.
    """

    __slots__ = ("_addresses", "_device", "_maps", "_memory", "_replace", "_views", "places")

    def __init__(self, maps: tuple[TensorMap | None, ...], device: int) -> None:
        driver = load_driver()
        self._maps, self._device = maps, device
        self._memory = ctypes.create_string_buffer(SIZE * (len(maps) + 1))
        start = -(-ctypes.addressof(self._memory) // SIZE) * SIZE
        self.places = tuple(start + i * SIZE for i in range(len(maps)))
        self._views = tuple(driver.CUtensorMap(place) for place in self.places)
        self._replace = driver.cuTensorMapReplaceAddress
        self._addresses = [0] * len(maps)

    def set_addresses(self, addresses: Sequence[int]) -> None:
        """Write the addresses of the matrices into their maps, if they have any."""
        for i, tensor_map in enumerate(self._maps):
            written, address = self._addresses[i], addresses[i]
            if address == written or not address or tensor_map is None:
                continue
            if not written:
                with entered(self._device):
                    ctypes.memmove(self.places[i], tensor_map.encode(address), SIZE)
            elif int(self._replace(self._views[i], address)[0]):
                with entered(self._device):
                    doing = "setting the address of a tensor map"
                    checked(self._replace(self._views[i], address), doing)
            self._addresses[i] = address
