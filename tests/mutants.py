"""Known ways to break the project, each of which a test without a GPU has to notice.

``python tests/mutants.py`` makes a copy of the project, breaks one thing in it at a time, and runs
the tests that execute the kernels concerned as they are emitted or, of what is no part of a kernel,
the file that tests it. It prints the first test that fails for each, and exits with 1 if one is not
noticed. ``--only REGEX`` chooses, ``--jobs N`` runs as many at a time, ``--list`` shows them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: What executes the kernels; ``-k`` chooses among its cases by the kernels' names.
TESTS = (
    "tests/test_steps.py",
    "tests/test_passes.py",
    "tests/test_thin.py",
    "tests/test_ptx_gemm.py",
    "tests/test_ladder_accesses.py",
    "tests/test_unaligned.py",
    "tests/test_ptx_hopper.py",
    "tests/test_ptx_wgmma.py",
)

#: What executes kernels on operands of more than 2**31 elements.
FAR = ("tests/test_far_offsets.py", "tests/test_passes.py")

_TILED = "smem_tiled or bank_free"
_ASYNC = "double_buffered or sm80_pipeline"
_MMA = "sm80_pipeline or tensor_core"
_WGMMA = "the_family"
_ROWS = "the_family and (tf32 or int8)"
_BYTES = "sm90_wgmma and (tf32 or int8)"


class Mutant(NamedTuple):
    """One thing that is broken: in ``file``, ``old`` (there once) becomes ``new``.

    ``kernels``: the ``-k`` expression of what it concerns, among ``tests``.
    """

    name: str
    file: str
    old: str
    new: str
    kernels: str
    tests: tuple[str, ...] = TESTS


def _t(name: str, file: str, old: str, new: str, kernels: str) -> Mutant:
    return Mutant(name, f"templates/{file}", old, new, kernels)


def _p(name: str, file: str, old: str, new: str, kernels: str) -> Mutant:
    return Mutant(name, f"cute_gemm/{file}", old, new, kernels)


def _far(name: str, file: str, old: str, new: str, only: str) -> Mutant:
    return Mutant(name, file, old, new, only, FAR)


def _m(name: str, file: str, old: str, new: str, test: str, only: str) -> Mutant:
    return Mutant(name, f"cute_gemm/{file}", old, new, only, (f"tests/test_{test}.py",))


MUTANTS: tuple[Mutant, ...] = (
    # Copies to shared memory
    _t("a cut vector is filled with what lies behind it", "common/copy.cuh",
       "i < valid ? src[i] : Element(0)", "src[i]", _ASYNC),
    _t("a vector outside the matrix is read", "common/copy.cuh",
       "int const size = valid > 0 ? kBytes : 0;", "int const size = kBytes;", _ASYNC),
    _t("a cut vector is copied whole", "common/copy.cuh",
       "if (0 < valid && valid < N) {", "if (false) {", _ASYNC),
    _t("no predicate on a copy of 16 bytes", "common/copy.cuh",
       '"@p cp.async.cg.shared.global [%0], [%1], 16;',
       '"cp.async.cg.shared.global [%0], [%1], 16;',
       _ASYNC),
    _t("no predicate on a copy of 4 or 8 bytes", "common/copy.cuh",
       '"@p cp.async.ca.shared.global [%0], [%1], %3;',
       '"cp.async.ca.shared.global [%0], [%1], %3;',
       _ASYNC),
    _t("no predicate on a copy of 1 or 2 bytes", "common/copy.cuh",
       "} else if (active) {\n    using Word = uint_bit_t<8 * Bytes>;",
       "} else {\n    using Word = uint_bit_t<8 * Bytes>;", "sm80_pipeline"),
    # The epilogue
    _t("alpha twice", "common/epilogue.cuh",
       "return ElementC(alpha * sum);", "return ElementC(alpha * (alpha * sum));",
       "naive or sm80_pipeline"),
    _t("beta forgotten", "common/epilogue.cuh",
       "alpha * sum + beta * Accumulator(old)", "alpha * sum + Accumulator(old)",
       "naive or sm80_pipeline"),
    _t("C read at beta = 0", "common/epilogue.cuh", "if (!reads_c()) {", "if (false) {", "naive"),
    _t("beta of another element", "common/epilogue.cuh",
       "(*this)(sums[i], old[i])", "(*this)(sums[i], old[0])", "sm80_pipeline or vectorized"),
    _t("C read at beta = 0 where nothing is summed", "common/epilogue.cuh",
       "reads_c() ? beta * Accumulator(c) : Accumulator(0)", "beta * Accumulator(c)",
       "empty_product and sm90"),
    _t("A and B read at alpha = 0", "common/epilogue.cuh",
       "if (k == 0 || alpha == Accumulator(0)) {", "if (k == 0) {", "alpha_zero"),
    _t("alpha on the device is not looked at", "common/epilogue.cuh",
       "return pointer ? *pointer : value;", "return value;", "scalars"),
    # Which CTA computes what
    _t("the last group of tiles taken for a whole one", "common/raster.cuh",
       "int const rows = min(tiles_m - first, Group);", "int const rows = Group;", _TILED),
    _t("tiles of a row skipped", "common/raster.cuh",
       "inside / rows * kBN", "inside / rows * kBN * 2", _TILED),
    _t("partial tiles of N not counted", "common/raster.cuh",
       "tiles_n = ceil_div(n, kBN);", "tiles_n = n / kBN < 1 ? 1 : n / kBN;", _TILED),
    # Layouts
    _t("swizzled parts added, not joined", "common/layout.cuh",
       "(thread_part ^ (static_part & kMask))", "(thread_part + (static_part & kMask))",
       "sm80_pipeline or bank_free"),
    _t("the swizzle's mask taken from its source bits", "common/layout.cuh",
       "return ((1 << B) - 1) << M;", "return ((1 << B) - 1) << (M + S);", _MMA),
    _t("a thread's row and column exchanged", "common/layout.cuh",
       ": row(int(TV{}(thread, value)) % E0), column(int(TV{}(thread, value)) / E0) {}",
       ": row(int(TV{}(thread, value)) / E0), column(int(TV{}(thread, value)) % E0) {}", _MMA),
    # Where the matrices' elements are
    _t("A by the leading dimension of B", "simt/gemm.cuh",
       "row * lda + k : row + k * lda", "row * ldb + k : row + k * ldb", "naive or smem_tiled"),
    _t("B steps by the leading dimension of A", "simt/gemm.cuh",
       "return Config::kMajorKB ? 1 : ldb;", "return Config::kMajorKB ? 1 : lda;",
       "naive or coalesced"),
    _t("strides of C swapped", "simt/gemm.cuh",
       "row * ldc + column : row + column * ldc", "row + column * ldc : row * ldc + column",
       "naive"),
    # Products
    _t("the conjugate of the other operand", "simt/gemm.cuh",
       "T const b_imag = Config::kConjB ? -b.imag() : b.imag();",
       "T const b_imag = Config::kConjA ? -b.imag() : b.imag();", "conjugate"),
    _t("the wrong sign of i * i", "simt/gemm.cuh",
       "pass ? -a_imag * b_imag : a_real * b_real", "pass ? a_imag * b_imag : a_real * b_real",
       "warp_tiled or double_buffered"),
    _t("the wrong sign of i * i, of fragments", "sm80/mainloop.cuh",
       "T const turned = Config::kConjA == Config::kConjB ? -a[i].imag() : a[i].imag();",
       "T const turned = a[i].imag();", "conjugate"),
    _t("A's conjugate only in real parts", "sm80/mainloop.cuh",
       "T const a_imag = Config::kConjA ? -a[i].imag() : a[i].imag();",
       "T const a_imag = a[i].imag();", "conjugate"),
    _t("B's conjugate only in real parts", "sm80/mainloop.cuh",
       "Config::kConjB ? -a[i].real() : a[i].real();", "a[i].real();", "conjugate"),
    _t("the row that the way back should have reversed", "simt/gemm.cuh",
       "multiply_add<Config>(sums[i][j], a[i], b[j]);",
       "multiply_add<Config>(sums[i][j], a[step], b[j]);",
       "thread_tile_2d"),
    _t("sums not started at 0", "simt/mainloop.cuh",
       "typename Config::Accumulator sums[kTM][kTN] = {};",
       "typename Config::Accumulator sums[kTM][kTN];",
       "smem_tiled"),
    # The way to C
    _t("C written beyond its end", "simt/gemm.cuh",
       "if (valid > 0) gemm.epilogue.template update<N>(c, sums);",
       "gemm.epilogue.template update<N>(c, sums);", "smem_tiled or vectorized"),
    _t("C written beyond its last row", "simt/gemm.cuh",
       "(r < gemm.m ? gemm.n - c : 0)", "(gemm.n - c)", "smem_tiled or thread_tile_2d"),
    _t("a vector of C taken across it", "simt/gemm.cuh",
       "run[e] = kRows ? sums[outer][inner + e] : sums[inner + e][outer];",
       "run[e] = kRows ? sums[outer][inner] : sums[inner][outer];", "vectorized"),
    # Tiles through registers
    _t("the ends of rows not looked at", "simt/tiles.cuh",
       "kMajorK ? (row < rows_left ? columns_left - column : 0)",
       "kMajorK ? (row < rows_left ? int(kVector) : 0)", _TILED),
    _t("K's end stays where it was", "simt/tiles.cuh",
       "    columns_left -= kColumns;\n", "", _TILED),
    _t("no zeros behind the end", "simt/tiles.cuh",
       "e < inside ? load<Element>(from + e) : Element(0)", "load<Element>(from + e)", _TILED),
    _t("a block's columns stored in one", "simt/tiles.cuh",
       "SmemLayout{}(i * Copy::kStepRows, j * Copy::kStepColumns + column)",
       "SmemLayout{}(i * Copy::kStepRows, j * Copy::kStepColumns)", "vectorized"),
    _t("fragments swizzled twice", "simt/tiles.cuh",
       "+ (at & ~kMask) * sizeof(Element);", "+ at * sizeof(Element);", "bank_free"),
    _t("a thread's part of the tile by its number alone", "simt/tiles.cuh",
       "smem_first = SmemLayout{}(row, column);", "smem_first = SmemLayout{}(row, 0);", _TILED),
    # Loops over k
    _t("the last tile of k skipped", "simt/mainloop.cuh",
       "first < gemm.k;", "first + size<2>(typename Config::Tile{}) <= gemm.k;", "smem_tiled"),
    _t("tiles overwritten while they are read", "simt/mainloop.cuh",
       "    __syncthreads();  // nobody reads the tiles before any more\n", "", "smem_tiled"),
    _t("tiles read before they are there", "simt/mainloop.cuh",
       "    copy_b.store(tile_b);\n    __syncthreads();\n", "    copy_b.store(tile_b);\n",
       "smem_tiled"),
    _t("A's copy in place of B's", "simt/mainloop.cuh",
       "    copy_b.fetch();\n", "    copy_a.fetch();\n", "smem_tiled"),
    _t("A's copy in place of B's, all of K", "simt/smem_full_k.cuh",
       "    b.fetch();\n", "    a.fetch();\n", "smem_full_k"),
    _t("panels read before they are there", "simt/smem_full_k.cuh",
       "  __syncthreads();\n", "", "smem_full_k"),
    _t("panels that overlap", "simt/smem_full_k.cuh",
       "panel_a + steps * Config::kSmemA;", "panel_a + Config::kSmemA;", "smem_full_k"),
    _t("half of a warp's sums added", "simt/coalesced.cuh",
       "distance = kLanes / 2;", "distance = kLanes / 4;", "coalesced"),
    _t("one product too many", "simt/coalesced.cuh",
       "whole * kLanes + lane < gemm.k", "whole * kLanes + lane <= gemm.k", "coalesced"),
    _t("every lane writes", "simt/coalesced.cuh", "if (lane == 0) write", "write", "coalesced"),
    _t("rows beyond the matrix are computed", "simt/naive.cuh",
       "if (row >= gemm.m || column >= gemm.n) return;", "if (column >= gemm.n) return;", "naive"),
    _t("A steps along its rows", "simt/naive.cuh", "a += gemm.a_step();", "a += 1;", "naive"),
    # Two buffers
    _t("the first tile is not waited for", "simt/double_buffered.cuh",
       "    cp_async_wait<0>();\n    __syncthreads();\n\n", "    __syncthreads();\n\n",
       "double_buffered"),
    _t("the next tile is not waited for", "simt/double_buffered.cuh",
       "              cp_async_wait<0>();\n              __syncthreads();\n",
       "              __syncthreads();\n",
       "double_buffered"),
    _t("no barrier between the buffers", "simt/double_buffered.cuh",
       "              cp_async_wait<0>();\n              __syncthreads();\n",
       "              cp_async_wait<0>();\n",
       "double_buffered"),
    _t("a tile of k left out behind the last", "simt/double_buffered.cuh",
       "a.source -= k_tiles * kBK * a.column_stride;",
       "a.source -= (k_tiles - 1) * kBK * a.column_stride;",
       "double_buffered"),
    _t("the wrong buffer", "simt/double_buffered.cuh",
       "              step = -step;\n", "", "double_buffered"),
    _t("one tile too many begun", "simt/double_buffered.cuh",
       "two_more = tile + 1 < k_tiles;", "two_more = true;", "double_buffered"),
    _t("rows beyond the matrix are begun", "simt/double_buffered.cuh",
       "int const rows = active ? this->rows_left : 0;", "int const rows = active ? 1 << 30 : 0;",
       "double_buffered"),
    # Passes before and behind a kernel
    _t("words shifted by one too few", "passes/pack.cuh",
       "8 * (address & 3)", "8 * (address & 2)", "packing"),
    _t("a word across the matrix's end is read whole", "passes/pack.cuh",
       "first >= from && first + kElements <= end;", "first >= from && first < end;", "packing"),
    _t("a word across the matrix's beginning is read whole", "passes/pack.cuh",
       "bool const inside = first >= from && ", "bool const inside = ", "packing"),
    _t("a turned tile read before it is there", "passes/pack.cuh",
       "    if constexpr (Turned) {\n      __syncthreads();", "    if constexpr (Turned) {",
       "packing"),
    _t("a turned tile without its swizzle", "passes/pack.cuh",
       "16 * (vector ^ (column % 8))", "16 * vector", "packing"),
    _t("the target's batch where the source's is", "passes/pack.cuh",
       "+ batch * operand.batch;", "+ batch * operand.target_batch;", "packing"),
    _t("a slice's sums added twice", "passes/reduce.cuh",
       "at += kAhead * shape.step", "at += (kAhead - 1) * shape.step", "order"),
    _t("C written beyond its rows by the sums", "passes/reduce.cuh",
       "if (column + e < shape.extent) epilogue", "epilogue", "sums or reduc"),
    _p("the last slice as deep as the others", "toolchain/unit.py",
       "if (k_last > 0 && slice == slices - 1) k = k_last;", "", "executed_is_predicted"),
    _p("of a batch only the last slice of all shorter", "toolchain/unit.py",
       "slice == slices - 1", "batch == l - 1", "is_cut"),
    _p("a product's slices are the next products'", "toolchain/unit.py",
       "A += product * batch_a", "A += batch * batch_a", "is_cut"),
    _t("sums of another product", "passes/reduce.cuh",
       "sums + matrix * shape.slices * shape.step", "sums + matrix * shape.step", "is_cut"),
    _t("all products are the first", "passes/reduce.cuh",
       "C += matrix * shape.batch;", "", "is_cut"),
    _t("slices of K go on behind a product's last", "sm90/sm90_wgmma.cuh",
       "first = tile.batch % slices * k", "first = tile.batch * k", "is_cut"),
    _t("of a batch only the last slice of all ends early", "sm90/sm90_wgmma.cuh",
       "tile.batch % slices == slices - 1", "tile.batch == l - 1", "is_cut"),
    _p("slices begin one tile too late", "problem/passes.py",
       "jump = depth * one.stride[1]", "jump = (depth + 64) * one.stride[1]",
       "executed_is_predicted"),
    _p("the packed operand found where the first lies", "steps.py",
       'places[target.name] = Place("scratch", offset)', 'places[target.name] = Place("scratch")',
       "executed_is_predicted"),
    # The kernel of a few rows or columns
    _t("a cut vector of a thin product is read whole", "thin/part.cuh",
       "if (kCut && 0 < inside && inside < Width) {", "if (false) {", "thin"),
    _t("rows beyond the large operand are read", "thin/part.cuh",
       "down < rows && (!kCut || along < columns) ? left : 0",
       "!kCut || along < columns ? left : 0", "thin"),
    _t("lanes wait in the same banks", "thin/part.cuh",
       "lane % 4 * 8 + (lane / 4 ^ lane % 4 * 2)", "lane % 4 * 8 + lane / 4", "thin"),
    _t("bytes of the wrong k in a fragment", "thin/part.cuh",
       "pair(i, e), pair(i, e + 2), 0x5410", "pair(i, e), pair(i, e + 2), 0x1054", "thin"),
    _t("a k-tile left out, another taken twice", "thin/thin.cuh",
       "return tile < tiles - 1 ? tile : tile - (tiles - 1);",
       "return tile < tiles - 1 ? tile : tiles - 2;", "thin"),
    _t("the queue is not waited for", "thin/thin.cuh",
       '"n"(Config::kStages - 2)', '"n"(Config::kStages - 1)', "thin"),
    _t("sums written over another warp's queue", "thin/thin.cuh",
       '::: "memory");\n    __syncthreads();', '::: "memory");', "thin"),
    _t("the sums of the last warp forgotten", "thin/thin.cuh",
       "w < Config::kWarps; ++w", "w < Config::kWarps - 1; ++w", "thin"),
    _t("lanes along k add up the wrong sums", "thin/thin.cuh",
       "halve<kSums / 2>(lane, 1);", "halve<kSums / 2>(lane, 2);", "thin"),
    # Rings of stages
    _t("the cut tile in the wrong stage", "sm80/sm80_pipeline.cuh",
       "tiles.fetch(stage, stage, k_tiles, tail);",
       "tiles.fetch(stage, stage + (stage == 0), k_tiles, tail);", "sm80_pipeline"),
    _t("the cut tile not cut", "sm80/sm80_pipeline.cuh",
       "int const tail = k - (k_tiles - 1) * kBK;", "int const tail = kBK;", "sm80_pipeline"),
    _t("one tile fewer is waited for", "sm80/sm80_pipeline.cuh",
       "          cp_async_wait<kWait>();\n", "          cp_async_wait<kWait + 1>();\n",
       "sm80_pipeline"),
    _t("the first tile is not waited for, in a ring", "sm80/sm80_pipeline.cuh",
       "    cp_async_wait<kWait>();\n    __syncthreads();\n    if constexpr",
       "    __syncthreads();\n    if constexpr", "sm80_pipeline"),
    _t("no barrier in the ring", "sm80/sm80_pipeline.cuh",
       "          __syncthreads();\n          read =", "          read =", "sm80_pipeline"),
    _t("a stage skipped", "sm80/sm80_pipeline.cuh",
       "read = read == kStages - 1 ? 0 : read + 1;", "read = read >= kStages - 2 ? 0 : read + 1;",
       "sm80_pipeline"),
    _t("tiles beyond K loaded", "sm80/sm80_pipeline.cuh",
       "tiles.advance(k_tile + kStages - 1, write, k_tiles);", "tiles.advance(0, write, k_tiles);",
       "sm80_pipeline"),
    _t("a tile in another stage than it is read from", "sm80/mainloop.cuh",
       "    next += k_step;\n    target = smem + pipe *",
       "    next += k_step;\n    target = smem + 0 *", "sm80_pipeline"),
    _t("all threads have the first one's rows", "sm80/mainloop.cuh",
       "rows_left(extent - corner - first.row) {", "rows_left(extent - corner) {", _MMA),
    _t("columns counted from the tile's first", "sm80/mainloop.cuh",
       "columns_left - first.column - column;", "columns_left - column;", _MMA),
    _t("B's rows counted by m", "sm80/mainloop.cuh", "b(B, corner.column, n, k,",
       "b(B, corner.column, m, k,", _MMA),
    _t("fragments always of the first stage", "sm80/mainloop.cuh",
       "uint32_t const source = smem + pipe *", "uint32_t const source = smem + 0 *",
       "sm80_pipeline"),
    _t("always the first MMA's B", "sm80/mainloop.cuh",
       "b.values + kB * (n + kMmaN * step)", "b.values + kB * n", _MMA),
    _t("tf32 cut off, not rounded", "sm80/mainloop.cuh",
       "bits = nearest_tf32(bits);", "(void)bits;",
       "rounded"),
    _t("the tile overwritten while it is read", "sm80/tensor_core.cuh",
       "if (k_tile > 0) __syncthreads();  // nobody reads the tile before any more\n", "\n",
       "tensor_core"),
    _t("the tile is not waited for", "sm80/tensor_core.cuh",
       "      cp_async_wait<0>();\n      __syncthreads();\n", "      __syncthreads();\n",
       "tensor_core"),
    _t("sums staged over tiles that are read", "sm80/write.cuh",
       "    __syncthreads();  // what was in shared memory before has been read\n", "", _MMA),
    _t("staged sums read before they are there", "sm80/write.cuh",
       "    __syncthreads();\n    CUTE_UNROLL\n"
       "    for (int n = 0; n < kColumns; n += Copy::kColumns) {",
       "    CUTE_UNROLL\n    for (int n = 0; n < kColumns; n += Copy::kColumns) {", _MMA),
    _t("C written below its last row", "sm80/write.cuh",
       "if (mine.row + m < rows_left && mine.column + column < columns_left) {",
       "if (mine.column + column < columns_left) {", _MMA),
    _t("all parts to the first part's columns", "sm80/write.cuh",
       "int const column = part * kColumns + n;", "int const column = n;", _MMA),
    # TMA and wgmma
    _t("a stage's parity stays", "sm90/pipeline.cuh",
       "parity ^= 1;",
       "parity ^= 0;", _WGMMA),
    _t("a stage more than there are", "sm90/pipeline.cuh",
       "if (++stage == Stages)",
       "if (++stage > Stages)", _WGMMA),
    _t("k and the row of a box exchanged", "sm90/pipeline.cuh",
       "box * kSpan + (kMajorK ? k : row)",
       "box * kSpan + (kMajorK ? row : k)", _WGMMA),
    _t("a cluster's parts in one place", "sm90/pipeline.cuh",
       " + first * kSpan;",
       ";", _WGMMA),
    _t("B for the first CTA of a cluster alone", "sm90/pipeline.cuh",
       "sharers, kHint",
       "1, kHint", _WGMMA),
    _t("a stage empty when half of a cluster has read it", "sm90/pipeline.cuh",
       "kReaders * Config::Cluster::kPartners)",
       "kReaders)", _WGMMA),
    _t("a stage empty when one group has read it", "sm90/pipeline.cuh",
       "4 * (Config::kPingPong ? 1 : Config::kConsumers)",
       "4", _WGMMA),
    _t("a full stage waits for two arrivals", "sm90/pipeline.cuh",
       "Barrier::init(&full[stage], 1)",
       "Barrier::init(&full[stage], 2)", _WGMMA),
    _t("the barriers are not shown to TMA", "sm90/pipeline.cuh",
       "    cutlass::arch::fence_barrier_init();\n",
       "", _WGMMA),
    _t("always the first stage is given back", "sm90/pipeline.cuh",
       "Barrier::arrive(&empty[stage]);",
       "Barrier::arrive(&empty[0]);", _WGMMA),
    _t("a cluster's other CTA is not told", "sm90/pipeline.cuh",
       "partner, lane < Config::Cluster::kPartners",
       "partner, lane < 1", _WGMMA),
    _t("the steps of a descriptor exchanged", "sm90/multiply.cuh",
       "leading_byte_offset_ = kAlong",
       "leading_byte_offset_ = kAcross", _WGMMA),
    _t("the step across the step along", "sm90/multiply.cuh",
       "stride_byte_offset_ = kAcross",
       "stride_byte_offset_ = kAlong", _WGMMA),
    _t("32 bytes swizzled as 64", "sm90/multiply.cuh",
       "kSpan == 8 * kUnit ? 1 : kSpan == 4 * kUnit ? 2 : 3",
       "kSpan == 8 * kUnit ? 1 : 2", _WGMMA),
    _t("always the first 32 bytes of B's k", "sm90/multiply.cuh",
       "B::step(0, kDeep * step)",
       "B::step(0, 0)", _WGMMA),
    _t("always the first rows of A", "sm90/multiply.cuh",
       "A::step(64 * m, kDeep * step)",
       "A::step(0, kDeep * step)", _WGMMA),
    _t("k of a product that of halves", "sm90/multiply.cuh",
       "kDeep = 32 / sizeof(Element)",
       "kDeep = 16", _BYTES),
    _t("units of 8 elements, whatever they are", "sm90/multiply.cuh",
       "kUnit = 16 / sizeof(Element)",
       "kUnit = 8", _BYTES),
    _p("TMA does not round to tf32", "kernels/sm90/wgmma.py",
       "*boxes[matrix.name], config.factor.name)",
       "*boxes[matrix.name])", "tf32_is_rounded"),
    _t("sums not started at 0, wgmma", "sm90/multiply.cuh",
       "first && step == 0",
       "false", _WGMMA),
    _t("every k tile starts at 0", "sm90/multiply.cuh",
       "first && step == 0",
       "step == 0", _WGMMA),
    _t("no fence before wgmma", "sm90/multiply.cuh",
       "bool first) {\n    warpgroup_arrive();\n",
       "bool first) {\n", _WGMMA),
    _t("a stage given back while it is read", "sm90/sm90_wgmma.cuh",
       "if (k_tile > 0) memory.release(last, partner);",
       "if (k_tile > 0) memory.release(turn.stage, partner);", _WGMMA),
    _t("one product fewer is waited for", "sm90/sm90_wgmma.cuh",
       "warpgroup_wait<1>();",
       "warpgroup_wait<2>();", _WGMMA),
    _t("the last products are not waited for", "sm90/sm90_wgmma.cuh",
       "warpgroup_wait<0>();",
       "warpgroup_wait<1>();", _WGMMA),
    _t("loads into stages that are not empty", "sm90/sm90_wgmma.cuh",
       "          Barrier::wait(&memory.empty[turn.stage], turn.parity ^ 1);\n",
       "", _WGMMA),
    _t("the other parity is waited for", "sm90/sm90_wgmma.cuh",
       "turn.parity ^ 1",
       "turn.parity", _WGMMA),
    _t("products of stages that are not full", "sm90/sm90_wgmma.cuh",
       "        Barrier::wait(&memory.full[turn.stage], turn.parity);\n",
       "", _WGMMA),
    _t("half of a stage's bytes are expected", "sm90/sm90_wgmma.cuh",
       "expect_tx(full, Memory::kBytes)",
       "expect_tx(full, Memory::kBytes / 2)", _WGMMA),
    _t("a partial k tile left out", "sm90/sm90_wgmma.cuh",
       "? 0 : ceil_div(k, kBK);",
       "? 0 : k / kBK;", _WGMMA),
    _t("all groups have the first one's rows", "sm90/sm90_wgmma.cuh",
       "Sums::A::step(Sums::row(group), 0)",
       "Sums::A::step(0, 0)", _WGMMA),
    _t("A of the batch's first matrix", "sm90/sm90_wgmma.cuh",
       "matrix_a = shared_a ? 0 : product",
       "matrix_a = 0", _WGMMA),
    _t("B's stages as far apart as A's", "sm90/sm90_wgmma.cuh",
       "turn.stage * int(Memory::kB *",
       "turn.stage * int(Memory::kA *", _WGMMA),
    _t("a CTA ends before its cluster", "sm90/sm90_wgmma.cuh",
       "  if constexpr (Cluster::kCtas > 1) cluster_sync();\n}",
       "}", _WGMMA),
    _t("CTAs of a cluster take one tile", "sm90/schedule.cuh",
       "* kBelow + Cluster::below(rank)) * kBM",
       "* kBelow) * kBM", _WGMMA),
    _t("the last group of tiles taken for a whole one, wgmma", "sm90/schedule.cuh",
       "min(rows - above, int(kGroup))",
       "int(kGroup)", _WGMMA),
    _t("sums are not shown to TMA", "sm90/store.cuh",
       'asm volatile("fence.proxy.async.shared::cta;\\n" ::: "memory");',
       "", _WGMMA),
    _t("all groups at one barrier", "sm90/store.cuh",
       '"r"(1 + group)',
       '"r"(1)', _WGMMA),
    _t("a part of C overwritten before it has gone", "sm90/store.cuh",
       "tma_store_wait<kStores - 1>();",
       "tma_store_wait<kStores>();", _WGMMA),
    _t("C's last parts are not waited for", "sm90/sm90_wgmma.cuh",
       "    if (Config::kTmaC && thread == 0) tma_store_wait<0>();\n",
       "", _WGMMA),
    _t("columns of the other half of a matrix", "sm90/store.cuh",
       "column = lane / 16 * 8;",
       "column = 8 - lane / 16 * 8;", _WGMMA),
    _t("C is read before it has come", "sm90/store.cuh",
       "        Barrier::wait(came + part % kStores, parity);\n",
       "", _WGMMA),
    _t("C's parity stays", "sm90/store.cuh",
       "if (part % kStores == kStores - 1) parity ^= 1;",
       "if (part % kStores == kStores - 1) parity ^= 0;", _WGMMA),
    _t("a part of C fetched to where one is still stored", "sm90/store.cuh",
       "          tma_store_wait<0>();\n          fetch", "          fetch", _WGMMA),
    _t("C of the batch's first matrix", "sm90/store.cuh",
       "SM90_TMA_STORE_3D::copy(map, from, along, across, tile.batch)",
       "SM90_TMA_STORE_3D::copy(map, from, along, across, 0)", _WGMMA),
    _t("a part of C overwritten by threads that are ahead", "sm90/store.cuh",
       "        group_sync(group);\n        CUTE_UNROLL", "        CUTE_UNROLL", _WGMMA),
    _t("A for CTAs with the same columns", "sm90/sm90_wgmma.cuh",
       "Cluster::beside(rank), Cluster::row(rank)",
       "Cluster::beside(rank), Cluster::column(rank)", _WGMMA),
    _t("a CTA tells itself twice, and one beside it not", "sm90/pipeline.cuh",
       "(i - Below >= beside(rank))",
       "0", _WGMMA),
    _t("tiles of a cluster beside each other are one", "sm90/schedule.cuh",
       "* kBeside + Cluster::beside(rank)) * kBN",
       "* kBeside) * kBN", _WGMMA),
    _t("the first rows of a tile twice", "sm90/pipeline.cuh",
       " + i % kPieces * kDepth;",
       ";", _WGMMA),
    _t("groups beside each other multiply the same columns", "sm90/sm90_wgmma.cuh",
       "Sums::B::step(Sums::column(group), 0)",
       "Sums::B::step(0, 0)", _WGMMA),
    _t("groups beside each other store to the same columns", "sm90/store.cuh",
       "tile.column + Sums::column(group) + part",
       "tile.column + part", _WGMMA),
    _t("nobody waits for its turn", "sm90/sm90_wgmma.cuh",
       "      if (Config::kPingPong && index > schedule.first()) wait_for_turn(group);\n",
       "", _WGMMA),
    _t("a turn is not given", "sm90/sm90_wgmma.cuh",
       "give_turn(1 - group);",
       ";", _WGMMA),
    _t("the k tiles of the other group are taken too", "sm90/sm90_wgmma.cuh",
       "      if (Config::kPingPong) skip(index + schedule.step());\n",
       "", _WGMMA),
    _t("the parity of k tiles that are skipped", "sm90/pipeline.cuh",
       "    parity ^= stage / Stages & 1;\n",
       "", _WGMMA),
    _t("both groups take the same tiles", "sm90/sm90_wgmma.cuh",
       "schedule.first() + second * schedule.step()",
       "schedule.first()", _WGMMA),
    # A through registers
    _t("rows loaded to where products have theirs", "sm90/multiply.cuh",
       "warpgroup_wait<Rows::kAhead>();", "warpgroup_wait<Rows::kAhead + 1>();", _ROWS),
    _t("no fence behind the loads of rows", "sm90/multiply.cuh",
       "% kSteps);\n    warpgroup_arrive();\n", "% kSteps);\n", _ROWS),
    _t("the rows of a step again", "sm90/multiply.cuh",
       "rows.load(stage, (step + 1) % kSteps)", "rows.load(stage, step)", _ROWS),
    _t("four columns of k twice", "sm90/multiply.cuh",
       "SmemLayout{}(0, i % 2 * 4)", "SmemLayout{}(0, 0)", _ROWS),
    _t("the rows of the first block", "sm90/multiply.cuh",
       "SmemLayout{}(i / 2 * 64, step * 8)", "SmemLayout{}(0, step * 8)", _ROWS),
    _t("a thread's second row where wgmma has it", "sm90/multiply.cuh",
       "Config::kRegisterA ? 1 : 8", "8", _ROWS),
    _t("two warps have the same rows", "sm90/multiply.cuh",
       "+ warp % 2 * 8 +", "+", _ROWS),
    _t("bytes of two columns exchanged that are not", "sm90/multiply.cuh",
       "? 0x1504 : 0x5140", "? 0x5140 : 0x5140", _ROWS),
    _t("bytes of the other row", "sm90/multiply.cuh",
       "i % 2 ? 0x7632 : 0x5410", "i % 2 ? 0x5410 : 0x7632", _ROWS),
    _t("16 columns of bytes twice", "sm90/multiply.cuh",
       "step * 32 + i / 4 % 2 * 16", "step * 32", _ROWS),
    _t("all groups load the first one's rows", "sm90/sm90_wgmma.cuh",
       "rows(Sums::row(group), thread)", "rows(0, thread)", _ROWS),
    _t("rows loaded before they have come", "sm90/sm90_wgmma.cuh",
       "          stage = come();\n", "          stage = memory.a[turn.stage];\n", _ROWS),
    _t("a last step with the next k tile's B", "sm90/sm90_wgmma.cuh",
       "rows, stage, before, false)", "rows, stage, b(), false)", _ROWS),
    _t("a stage given back while its B is read", "sm90/sm90_wgmma.cuh",
       "          memory.release(last, partner);\n",
       "          memory.release(turn.stage, partner);\n", _ROWS),
    _t("sums of the tile before stay", "sm90/sm90_wgmma.cuh",
       "others(stage, true);", "others(stage, false);", _ROWS),
    _t("CTAs take each other's tiles", "sm90/schedule.cuh",
       "return gridDim.x / kCtas;", "return 1;", _WGMMA),
    _t("the launch ahead is not waited for", "common/grids.cuh",
       "griddepcontrol.launch_dependents;\\ngriddepcontrol.wait;\\n",
       "griddepcontrol.launch_dependents;\\n", _WGMMA),
    Mutant("lanes of a warp load C before they meet", "templates/sm90/store.cuh",
           "        __syncwarp();  // the thread that fetched comes later\n", "",
           "meets_again", ("tests/test_ptx_wgmma.py",)),
    _t("boxes of C in one place", "sm90/store.cuh",
       "+ box * kSpan * (Config::kColumnMajorC ? kColumns : 64);",
       ";", _WGMMA),
    _t("elements of C beyond its rows", "sm90/store.cuh",
       "return row < m && column < n;",
       "return column < n;", _WGMMA),
    # Rows that begin at any element
    _t("words shifted by the wrong half", "sm80/unaligned.cuh",
       "shift & 8 ? both[i + 2] : both[i]", "shift & 8 ? both[i] : both[i + 2]", "sm80_pipeline"),
    _t("the word behind a row not copied", "sm80/unaligned.cuh",
       "i < kMore; ++i) copy_behind(i);", "i < 0; ++i) copy_behind(i);", "sm80_pipeline"),
    _t("what lies before the matrix read", "sm80/unaligned.cuh",
       "if (word >= begin && word + kVector <= end) {", "if (word + kVector <= end) {",
       "sm80_pipeline"),
    _t("what lies behind the matrix read", "sm80/unaligned.cuh",
       "if (word >= begin && word + kVector <= end) {", "if (word >= begin) {", "sm80_pipeline"),
    _t("no zeros behind the end of K", "sm80/unaligned.cuh",
       "bytes <= 0 ? 0u :", "bytes <= 0 ? ~0u :", "sm80_pipeline"),
    _t("a neighbour's word read while it is changed", "sm80/unaligned.cuh",
       "if (kLanes == 1 || threadIdx.x % 32 >= 32 - kNext)", "", "sm80_pipeline"),
    _t("rows put in place before they have come", "sm80/sm80_pipeline.cuh",
       "kWait = kStages - 2 - (kPlaces > 0);", "kWait = kStages - 2;", "sm80_pipeline"),
    _t("read before it is put in place", "sm80/tensor_core.cuh",
       "        tiles.realign(0, k_tile > 0 ? kBK : tail);\n        __syncthreads();\n",
       "        tiles.realign(0, k_tile > 0 ? kBK : tail);\n", "tensor_core"),
    # What Python emits and hands over
    _p("lda for ldb", "toolchain/signature.py",
       'f"ld{name.lower()}", "int64_t", 8, name, "ld")',
       'f"ld{name.lower()}", "int64_t", 8, name.replace("B", "A"), "ld")', "naive"),
    _p("the batch's step of A for B", "toolchain/unit.py",
       "B += product * batch_b", "B += product * batch_a",
       "naive"),
    _p("the batch's last product left out", "toolchain/unit.py", "if (batch >= l) return;",
       "if (batch >= l - 1) return;", "naive"),
    _p("a partial tile of N has no CTA", "kernels/sm80/pipeline.py",
       "grid = -(-problem.m // config.tile[0]) * -(-problem.n // config.tile[1])",
       "grid = -(-problem.m // config.tile[0]) * (problem.n // config.tile[1] or 1)", _MMA),
    _p("alpha's address for beta's", "kernels/simt/unit.py",
       "cute_gemm::scalar(beta, beta_ptr)", "cute_gemm::scalar(beta, alpha_ptr)", "scalars"),
    _p("the wrong operand's major", "kernels/simt/unit.py",
       '"major_k_b": cpp_bool(config.majors[1] == "K"),',
       '"major_k_b": cpp_bool(config.majors[0] == "K"),',
       "naive"),
    _p("the other operand conjugated", "kernels/simt/unit.py",
       '"conj_b": cpp_bool(config.conj[1]),', '"conj_b": cpp_bool(config.conj[0]),', "conjugate"),
    _p("the other operand conjugated, where they are exchanged", "kernels/sm80/unit.py",
       'cpp_bool(config.conj["AB".index(plan.source)]),',
       'cpp_bool(config.conj["AB".index(letter)]),', "conjugate"),
    _p("m and n not exchanged with A and B", "kernels/sm80/unit.py",
       '"B, A, C, n, m, k, ldb, lda, ldc"', '"B, A, C, m, n, k, ldb, lda, ldc"', _MMA),
    _p("the first operand's fragment for both", "kernels/sm80/unit.py",
       'f"fragment_{lower}": mma.fragment(letter, plan.extents).cpp(),',
       'f"fragment_{lower}": mma.fragment("A", plan.extents).cpp(),', _MMA),
    # Offsets of 32 bits
    _far("A's offset in 32 bits", "templates/simt/gemm.cuh",
         "row * lda + k : row + k * lda", "int(row * lda) + k : row + int(k * lda)", "naive"),
    _far("B's offset in 32 bits", "templates/simt/gemm.cuh",
         "column * ldb + k : column + k * ldb", "int(column * ldb) + k : column + int(k * ldb)",
         "naive"),
    _far("C's offset in 32 bits", "templates/simt/gemm.cuh",
         "row * ldc + column : row + column * ldc",
         "int(row * ldc) + column : row + int(column * ldc)", "naive"),
    _far("A's batch in 32 bits", "cute_gemm/toolchain/unit.py",
         "A += product * batch_a", "A += int(product * batch_a)", "naive"),
    _far("B's batch in 32 bits", "cute_gemm/toolchain/unit.py",
         "B += product * batch_b", "B += int(product * batch_b)", "naive"),
    _far("C's batch in 32 bits", "cute_gemm/toolchain/unit.py",
         "C += batch * batch_c", "C += int(batch * batch_c)", "naive"),
    _far("C's elements in 32 bits, wgmma", "templates/sm90/store.cuh",
         "row + column * ldc : row * ldc + column",
         "row + int(column * ldc) : int(row * ldc) + column", "sm90_wgmma"),
    _far("C's batch in 32 bits, wgmma", "templates/sm90/store.cuh",
         "tile.batch * batch +", "int(tile.batch * batch) +", "sm90_wgmma"),
    _far("the source's batch in 32 bits", "templates/passes/pack.cuh",
         "+ batch * operand.batch;", "+ int(batch * operand.batch);", "pack"),
    _far("the source's end in 32 bits", "templates/passes/pack.cuh",
         "from + (operand.rows - 1) * operand.ld", "from + int((operand.rows - 1) * operand.ld)",
         "pack"),
    _far("the target's batch in 32 bits", "templates/passes/pack.cuh",
         "batch * operand.target_batch * Bytes", "int(batch * operand.target_batch) * Bytes",
         "far_apart"),
    _far("sums of a batch in 32 bits", "templates/passes/reduce.cuh",
         "matrix * shape.slices * shape.step", "int(matrix * shape.slices * shape.step)",
         "far_apart"),
    _far("the next slice in 32 bits", "templates/passes/reduce.cuh",
         "(at + i * shape.step", "(at + int(i * shape.step)", "far_apart"),
    _far("C's batch in 32 bits, of sums", "templates/passes/reduce.cuh",
         "C += matrix * shape.batch", "C += int(matrix * shape.batch)", "far_apart"),
    _far("C's rows in 32 bits, of sums", "templates/passes/reduce.cuh",
         "row * shape.ldc", "int(row * shape.ldc)", "far_apart"),
    # What is no part of a kernel
    _m("CuPy's B wherever it is aligned", "problem/arrays.py",
       "b % ALIGNMENT, B.shape, B.strides", "0, B.shape, B.strides", "operand", "fingerprint"),
    _m("calls that differ in compute are one", "api.py",
       "(seen[0], op, order, kernel, backend, compute, arch",
       "(seen[0], op, order, kernel, backend, arch", "executable", "other_words"),
    _m("a device scalar of int64 for int32", "problem/scalars.py",
       '"safe" if accumulator == "int32" else "same_kind"', '"same_kind"', "problem", "converted"),
    _m("more tiles than 32 bits count", "kernels/sm90/wgmma.py",
       ">= 2**31 - 1024", ">= 2**31 - 1020", "sm90_wgmma", "32_bits"),
    _m("more rows than 32 bits count", "kernels/sm90/wgmma.py",
       "> 2**31 - 2048", "> 2**31 - 2040", "sm90_wgmma", "32_bits"),
    _m("an operand that was packed otherwise", "packed.py",
       "if self.target != target:", "if self.target.shape != target.shape:", "steps", "packed"),
    _m("sums of a launch that wrap", "model/gmem.py", "< 2**62:", "< 2**64:",
       "analysis_gmem", "huge_launches"),
    _m("residues of a launch that wrap", "model/gmem.py", "> 2**62:", "> 2**64:",
       "analysis_gmem", "add_up"),
    _m("a stride of 2**40 in a tensor map", "model/tma.py",
       "pitch >= STRIDE_LIMIT", "pitch > STRIDE_LIMIT", "analysis_tma", "refuses"),
    _m("options that cost wavefronts", "analysis/mends/options.py",
       " or paid[1] > now[1]", "", "mends", "wavefronts"),
    _m("copies whose stores to shared memory cost more", "analysis/mends/gmem.py",
       "bool(dearer or loads", "bool(loads", "mends", "dearer"),
    _m("copies whose loads of shared memory cost more", "analysis/mends/gmem.py",
       "dearer or loads[0][0] * loads[1][1] > loads[1][0] * loads[0][1]", "dearer",
       "mends", "dearer"),
    _m("a cache that a group can write to", "toolchain/cache.py",
       "status.st_mode & 0o022", "status.st_mode & 0o002", "cache", "others_can_write"),
    _m("a build under another's name", "toolchain/cache.py",
       'fields.pop("key") != key', 'not fields.pop("key")', "cache", "another"),
    _m("a link in the cache", "toolchain/cache.py",
       'getattr(os, "O_NOFOLLOW", 0)', "0", "cache", "link"),
)  # fmt: skip


class Found(NamedTuple):
    """What became of a mutant: the test that noticed it, or none, and the seconds it took."""

    mutant: Mutant
    test: str
    seconds: float


def break_it(tree: Path, mutant: Mutant) -> None:
    """Write the broken file; ValueError when the place is not there just once."""
    path = tree / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.file} has {mutant.old!r} {text.count(mutant.old)} times"
        )
    path.write_text(text.replace(mutant.old, mutant.new))


def try_it(mutant: Mutant) -> Found:
    """Break a copy of the project and run the tests of it."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        for folder in ("cute_gemm", "templates", "tests"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, tree / folder, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", tree)
        break_it(tree, mutant)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--no-header",
        ]
        done = subprocess.run(
            [*command, *mutant.tests, "-k", mutant.kernels],
            cwd=tree, capture_output=True, text=True, env=os.environ | {
                "PYTHONPATH": str(tree), "CUTE_GEMM_CACHE_DIR": str(tree / "cubins"),
                "CUTE_GEMM_TEST_TOGETHER": "1",
            },
            check=False,
        )  # fmt: skip
    failed = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or (done.returncode == 1 and not failed):
        raise RuntimeError(f"{mutant.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Found(mutant, failed[0] if failed else "", time.perf_counter() - start)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args(arguments)
    chosen = [one for one in MUTANTS if re.search(given.only, one.name)]
    if given.list:
        for one in chosen:
            print(f"{one.name:55} {one.file}")
        return 0
    survivors = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for found in pool.map(try_it, chosen):
            survivors += not found.test
            print(
                f"{found.mutant.name:55} {found.test or 'NOT NOTICED'} ({found.seconds:.0f} s)",
                flush=True,
            )
    print(f"{len(chosen)} mutants, {len(chosen) - survivors} noticed, {survivors} not")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
