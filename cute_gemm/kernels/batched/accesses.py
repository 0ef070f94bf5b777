"""The memory accesses of ``batched``."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cute_gemm.access.accesses import Access, GlobalAccess, SharedAccess
from cute_gemm.kernels.batched.structure import MMA_LANES, MMA_SHAPE, VECTOR, WARP, BatchedConfig
from cute_gemm.kernels.options import access_bytes
from cute_gemm.kernels.staging import element_by_element, loads_of_c, store_of_c, store_of_cut

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem


def copied(config: BatchedConfig, problem: GemmProblem, index: int) -> list[Access]:
    """Return the copies of the matrices A (0) or B (1), and of the last CTA's cut vectors."""
    operand, matrix = config.operands[index], problem.matrices[index]
    size, limit = matrix.element.bytes, access_bytes(matrix, True)[1]
    bits = 8 * size * operand.width
    crd, places, some = operand.vectors(config.threads)
    targets = np.where(some, config.begins[index] + places * size, -1)
    load = _visited(
        config, problem, index, crd,
        direction="load", instruction="cp.async" if bits >= 32 else "ld.global", bits=bits,
        tail="full", targets=targets if bits >= 32 else None, limit=limit if bits < 128 else "",
    )  # fmt: skip
    store = SharedAccess(
        matrix.name, "store", "cp.async" if bits >= 32 else "st.shared", bits, targets, guard=load
    )
    accesses: list[Access] = [load, store]
    if config.orders[index] != "run":
        return accesses
    part = "at the end of the last product"
    cut = replace(load, instruction="ld.global", targets=None, part=part)
    for each in element_by_element(cut):
        accesses += [each, store_of_cut(store, each)]
    return accesses


def _visited(
    config: BatchedConfig, problem: GemmProblem, index: int, crd: np.ndarray, **more: Any
) -> GlobalAccess:
    """Return an access to the vectors at ``crd`` (`Operand.vectors`) of each CTA's A, B or C."""
    operand, matrix = config.operands[index], problem.matrices[index]
    order, shared = config.orders[index], index < 2 and config.shared[index]
    extents = operand.smem.extents
    run, products = extents[0] * extents[1], crd[..., 2]
    unit: int = operand.unit
    together: dict[str, Any] = {"sweeps": 1}
    if order == "run" and not shared:
        run *= config.products
        matrix = _as_run(matrix, extents[0] * extents[1] * matrix.l, 1)
    elif order in ("run", "matrices"):
        matrix = _as_run(matrix, run, matrix.l)
    if order not in ("run", "matrices"):
        unit, tile = operand.unit, matrix.shape
        place = np.stack((crd[..., unit], crd[..., 1 - unit]), axis=-1)
    else:
        unit, tile = 0, (run, 1)
        place = np.stack((crd[..., 0], np.minimum(crd[..., 0], 0)), axis=-1)
    if shared:
        matrix = replace(matrix, l=1)
        together = {"sweeps": -(-problem.l // config.products)}
    elif order != "run":
        together |= {"products": products, "group": config.products}
    return GlobalAccess(
        operand=matrix.name, matrix=matrix, tile=tile, coords=place, axis=unit, **together, **more
    )  # fmt: skip


def _as_run(matrix: Matrix, elements: int, l: int) -> Matrix:
    """Return matrices without gaps, each as one column."""
    alignment = matrix.alignment if l > 1 else max(matrix.alignment, matrix.first_alignment)
    step = matrix.batch_stride if l > 1 else 0
    return replace(
        matrix, shape=(elements, 1), stride=(1, elements), l=l, batch_stride=step,
        alignment=alignment,
    )  # fmt: skip


def read(config: BatchedConfig, index: int, problem: GemmProblem) -> list[SharedAccess]:
    """Return the reads of A's (0) or B's (1) rows by the threads that multiply."""
    operand, values = config.operands[index], config.rows[index]
    name, k = operand.name, config.tile[2]
    element = (config.operation.a, config.operation.b)[index].bytes
    own, product = _first_results(config)
    own, first_k, steps = own[:, index], np.zeros(len(own), int), np.arange(k)
    if config.unit == "mma":  # 8 lanes along the rows, 4 along k
        lane = np.arange(len(own)) % WARP
        first_k = lane % MMA_LANES[1] * config.depth
        own = own if index == 0 else own - lane % MMA_LANES[1] * 2 + lane // MMA_LANES[1]
        steps = np.arange(0, k, MMA_SHAPE[2])[:, None] + np.arange(config.depth)
    major_k = config.operation.majors[index] == "K"
    step_k, step = (operand.read, 1) if major_k else (1, operand.read)
    last = config.tile[index] - step
    first = own[:, None] + values(np.arange(0, values.size, step))[None, :]
    rows = np.minimum(first, last)[None, :, :]
    columns = steps.reshape(-1)[::step_k, None, None] + first_k[:, None]
    inside = columns < k
    places = operand.modes(rows, np.where(inside, columns, 0), product[None, :, None])
    places = np.where(inside, config.begins[index] + element * places, -1)
    offsets = np.moveaxis(places, 1, 2).reshape(-1, len(own))
    return _executed(config, problem, offsets, product, "k-tile", SharedAccess(
        name, "load", "ld.shared", 8 * element * operand.read, offsets,
    ))  # fmt: skip


def _first_results(config: BatchedConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return m and n of each thread's first result, int [threads, 2], and its product."""
    lanes = prod(config.lanes)
    worker = np.minimum(np.arange(config.threads), config.workers - 1) // lanes
    along, across, product = np.unravel_index(worker, config.parts_by_order, order="F")
    places = (across, along) if config.operation.row_major else (along, across)
    steps = [int(layout.extents[0]) for layout in config.values]
    if config.unit == "mma":
        steps = [x * y for x, y in zip(config.lanes, config.thread_tile, strict=True)]
    first = np.stack([place * step for place, step in zip(places, steps, strict=True)], axis=-1)
    if config.unit == "mma":
        lane = np.arange(config.threads) % WARP
        first += np.stack((lane // MMA_LANES[1], lane % MMA_LANES[1] * 2), axis=-1)
    # Threads without results get the number of a product that does not exist.
    return first, np.where(np.arange(config.threads) < config.workers, product, config.products)


def _executed(
    config: BatchedConfig, problem: GemmProblem, offsets: np.ndarray, product: np.ndarray,
    unit: Literal["k-tile", "CTA"], access: SharedAccess,
) -> list[SharedAccess]:  # fmt: skip
    """Return an access by CTAs with all of their products, and by the last, which may have fewer.

    ``offsets``: [..., lanes]; only lanes with a product take part.
    """
    whole, rest = divmod(problem.l, config.products)
    accesses = []
    for count, ctas, part in ((config.products, whole, ""), (rest, 1, "last CTA" if whole else "")):
        if count and ctas:
            lanes = np.where(product < count, offsets, -1).reshape(-1, WARP)
            accesses.append(replace(access, offsets=lanes, executions=ctas, unit=unit, part=part))
    return accesses


def results(config: BatchedConfig, problem: GemmProblem, reads_c: bool) -> list[Access]:
    """Return the accesses of accumulators: stores to and loads from shared memory, stores to C."""
    operand, C, size = config.operands[2], problem.C, config.operation.accumulator.bytes
    own, product = _first_results(config)
    unit = operand.unit
    step = [1, 1]
    step[unit] = operand.read
    m, n = (
        own[:, mode, None] + values(np.arange(0, values.size, step[mode]))[None, :]
        for mode, values in enumerate(config.values)
    )
    m, n = (x.reshape(len(own), -1) for x in np.broadcast_arrays(m[:, :, None], n[:, None, :]))
    inside = (m < config.tile[0]) & (n < config.tile[1])
    places = operand.modes(np.where(inside, m, 0), np.where(inside, n, 0), product[:, None])
    offsets = np.where(inside, places * size, -1).T
    write = SharedAccess("C", "store", "st.shared", 8 * size * operand.read, offsets)
    accesses: list[Access] = [*_executed(config, problem, offsets, product, "CTA", write)]

    crd, at, some = operand.vectors(config.threads)
    width = min(operand.width, max(1, VECTOR // size))
    each = np.arange(0, operand.width, width)[:, None, None]
    accumulators = np.where(some, (at + each) * size, -1)
    load = SharedAccess("C", "load", "ld.shared", 8 * size * width, accumulators)
    # In a run, the product of a vector's first element; products that do not exist are not read.
    product_of = crd[..., 2] + crd[..., 0] // (operand.smem.extents[0] * operand.smem.extents[1])
    accesses += _executed(config, problem, accumulators, product_of[None], "CTA", load)
    bits, limit = 8 * C.element.bytes * operand.width, access_bytes(C, True)[1]
    store = _visited(
        config, problem, 2, crd, direction="store", instruction="st.global", bits=bits, unit="CTA",
        limit=limit if bits < 128 else "", tail="full",
    )  # fmt: skip
    stores = [store]
    if config.orders[2] == "run":
        stores += element_by_element(replace(store, part="at the end of the last product"))
    return [*accesses, *loads_of_c(stores, reads_c), *stores]


def elements_of_c(config: BatchedConfig, problem: GemmProblem) -> GlobalAccess:
    """Return C's elements; a lane has those of a vector one after the other."""
    operand, C = config.operands[2], problem.C
    run, rows, _ = operand.smem.extents
    crd, _, some = operand.vectors(config.threads)
    at = crd[:, None, :, 0] + np.arange(operand.width)[None, :, None]
    product = crd[:, None, :, 2] + at // (run * rows)
    place = np.stack((at % run, at // run % rows), axis=-1)[..., :: -1 if operand.unit else 1]
    inside = np.broadcast_to(some[:, None, :], at.shape) & (product < config.products)
    coords = np.where(inside[..., None], place, -1).reshape(-1, WARP, 2)
    products = np.where(inside, product, 0).reshape(-1, WARP)
    return store_of_c(
        C, 8 * C.element.bytes, C.shape, coords, "", group=config.products, products=products
    )
