"""Mutants of epilogues of pairs of columns: B's tiles, accumulators, reductions, counts."""

from mutant import Mutant

_TESTS = ("tests/kernels/test_pairs.py",)


def _t(name: str, file: str, old: str, new: str, only: str = "fused_kernel") -> Mutant:
    return Mutant(f"pairs: {name}", f"templates/{file}", old, new, only, _TESTS)


def _p(name: str, file: str, old: str, new: str, only: str = "fused_kernel") -> Mutant:
    return Mutant(f"pairs: {name}", f"cute_gemm/{file}", old, new, only, _TESTS)


_BEHIND, _COUNTS = "behind_other_kernels", "counts_are_those or read_and_written"

PAIRS: tuple[Mutant, ...] = (
    _t("both halves of a tile from the first columns", "tma/pipeline.cuh",
       "across - (kMajorK ? others : 0), which)", "across - (kMajorK ? others : 0), 0)"),
    _t("rows of the second half not taken back, K-major", "tma/pipeline.cuh",
       "across - (kMajorK ? others : 0)", "across"),
    _t("rows of the second half not taken back, MN-major", "tma/pipeline.cuh",
       "along - (kMajorK ? 0 : others)", "along"),
    _t("a box across both halves", "tma/pipeline.cuh",
       "kPairs && kMajorK && kHalf < 256 ? int(kHalf) : 256", "256"),
    _t("pairs of the first matrix of a batch", "tma/pipeline.cuh",
       "return {{along, across, which}, batch};", "return {{along, across, which}, 0};"),
    _t("a pair's sums beside each other", "sm90/mma.cuh",
       "block[i], block[i + kResults])", "block[i], block[i + 1])"),
    _t("a pair's sums exchanged", "sm90/mma.cuh",
       "(block[i], block[i + kResults])", "(block[i + kResults], block[i])"),
    _t("tiles of C as far apart as the product's", "sm90/epilogue.cuh",
       "return tile.column / Accumulators::kPerResult + Accumulators::column(group)",
       "return tile.column + Accumulators::column(group)"),
    _t("elements as far apart as the product's", "sm90/epilogue.cuh",
       "int const column = tile.column / Accumulators::kPerResult +",
       "int const column = tile.column +"),
    _t("more epilogue tiles than a group has", "sm90/epilogue.cuh",
       "kTilesN = kWidth / kColumns,", "kTilesN = Accumulators::kColumns / kColumns,"),
    _t("B's rows as far apart as the tiles", "sm90/sm90_wgmma.cuh",
       "map_b, full, memory.b[state.stage], column / kPerResult, at_k",
       "map_b, full, memory.b[state.stage], column, at_k"),
    _t("tiles of half of the product", "sm90/sm90_wgmma.cuh",
       "scheduler(c.m, kPerResult * c.n, l", "scheduler(c.m, c.n, l"),
    _t("without products a tile as wide as the product's", "sm90/epilogue.cuh",
       "tile.column / kPerResult + (Config::kColumnMajorC",
       "tile.column + (Config::kColumnMajorC", "not_read"),
    _p("C as wide as the product", "kernels/sm90/unit.py",
       'columns = "n / 2" if operation.epilogue.pairs else "n"', 'columns = "n"'),
    _p("a step of one column to the next pair", "problem/parts/slices.py",
       'stride=(2 * step if pairs == "pairs" else step, along_k)', "stride=(step, along_k)"),
    _p("halves as near as pairs", "problem/parts/slices.py",
       'apart = step if pairs == "pairs" else n // 2 * step', "apart = step"),
    _p("the second columns on a place of the batch", "run/tensormap.py",
       "(matrix.slices, matrix.slice_stride * size)", "(matrix.slices, layer)"),
    _p("adjacent columns along N by TMA", "kernels/sm90/wgmma.py",
       'if pairs == "pairs" and B.major', 'if pairs == "none" and B.major'),
    _p("boxes of C counted as the product's", "kernels/sm90/accesses.py",
       "tile, (bm, bn) = config.epilogue_tile, config.tile_c",
       "tile, (bm, bn) = config.epilogue_tile, config.kernel_tile[:2]", _COUNTS),
    _p("B counted once for both columns", "kernels/sm90/accesses.py",
       "matrix, modes, step = of_pairs(matrix, problem.epilogue.pairs), 4, step // 2",
       "modes, step = 4, step // 2", _COUNTS),
    _p("even columns twice", "problem/epilogue/rows.py",
       'Function("{0}.second", lambda acc: acc[..., 1::2],',
       'Function("{0}.first", lambda acc: acc[..., 1::2],'),
    _p("the second half of what is half", "problem/epilogue/rows.py",
       'Function("{0}.second", lambda acc: acc[..., acc.shape[-1] // 2 :],',
       'Function("{0}.second", lambda acc: acc[..., : acc.shape[-1] // 2],'),
    # The separate launch after other kernels.
    _t("a pair's columns a row apart, whatever they are", "auxiliary/reduce.cuh",
       "kAdjacent ? shape.ld : half;", "shape.ld;", _BEHIND),
    _t("the second half of a row begins with a row", "auxiliary/reduce.cuh",
       "Config::kRowMajorC ? shape.extent : shape.rows * shape.ld",
       "shape.rows * shape.ld", _BEHIND),
    _t("columns of pairs as far apart as C's", "auxiliary/reduce.cuh",
       "kAdjacent && !kInterleaved ? 2 * int64_t(row) : row", "row", _BEHIND),
    _t("places of a row as far apart as C's", "auxiliary/reduce.cuh",
       "own_row * shape.ld + kStep * first", "own_row * shape.ld + first", _BEHIND),
    _t("runs as far apart as C's", "auxiliary/reduce.cuh",
       "kStep * in_row + run % kParts * other", "in_row + run % kParts * other", _BEHIND),
    _t("the first columns twice", "auxiliary/reduce.cuh",
       "total[2 * run + 1][e]}", "total[2 * run][e]}", _BEHIND),
    _t("neighbours in a row exchanged", "auxiliary/reduce.cuh",
       "{total[run][2 * e], total[run][2 * e + 1]}", "{total[run][2 * e + 1], total[run][2 * e]}",
       _BEHIND),
    _p("vectors across the middle of a row", "kernels/auxiliary/reduce.py",
       "        widest = gcd(widest, C.shape[1])\n", "        pass\n", _BEHIND),
    _p("sums of half of the product", "problem/parts/slices.py",
       "shape, kind = (problem.m, problem.n),", "shape, kind = problem.C.shape,", _BEHIND),
    _p("the second half counted as the first", "kernels/auxiliary/reduce.py",
       'replace(first, origin=(0, columns // 2), part="second half")',
       'replace(first, part="second half")', _COUNTS),
    _p("the pairs' launch costs nothing", "plan/predict.py",
       "            self._each[0] += legal.reduced * self._pairing\n", "", "has_its_prediction"),
)  # fmt: skip
