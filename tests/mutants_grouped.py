"""Ways to break grouped GEMMs: their scheduler, ends of groups, tails along K."""

from __future__ import annotations

from mutant import Mutant

_TESTS = ("tests/test_grouped.py", "tests/test_torch_grouped.py")
_FP8 = ("tests/test_grouped_fp8.py",)


def _t(name: str, file: str, old: str, new: str, only: str = "interpreted") -> Mutant:
    return Mutant(f"grouped: {name}", f"templates/{file}", old, new, only, _TESTS)


def _p(name: str, file: str, old: str, new: str, only: str = "interpreted") -> Mutant:
    return Mutant(f"grouped: {name}", f"cute_gemm/{file}", old, new, only, _TESTS)


def _s(name: str, file: str, old: str, new: str, only: str = "interpreted") -> Mutant:
    return Mutant(f"grouped scales: {name}", file, old, new, only, _FP8)


GROUPED: tuple[Mutant, ...] = (
    _t("every group begins at 0", "tma/tile_scheduler.cuh", "        begin = end;\n", ""),
    _t("tiles before a group left out", "tma/tile_scheduler.cuh",
       "        above += tiles.count;\n", ""),
    _t("rows of the first group", "tma/tile_scheduler.cuh",
       "{tile.row + down, ", "{tile.row, "),
    _t("columns of the first group", "tma/tile_scheduler.cuh",
       "tile.column + right, group}", "tile.column, group}"),
    _t("the matrix of the first group", "tma/tile_scheduler.cuh",
       "tile.column + right, group}", "tile.column + right, 0}"),
    _t("the last group is left out", "tma/tile_scheduler.cuh",
       "group + 1 < ends.groups", "group + 2 < ends.groups"),
    _t("k up to the end of all", "tma/tile_scheduler.cuh",
       "return {tile, first, ends.end(tile.batch, first)};", "return {tile, first, ends.total};"),
    _t("ends beyond all are taken as they are", "common/groups.cuh",
       "min(max(ends[group], begin), total)", "max(ends[group], begin)", "not_trusted"),
    _t("a group ends before it begins", "common/groups.cuh",
       "min(max(ends[group], begin), total)", "min(ends[group], total)", "not_trusted"),
    _t("a box goes on behind its group", "tma/pipeline.cuh",
       "min(max(end - across, 0), kDepth)", "int(kDepth)"),
    _t("a box begins where its part of the group does not", "tma/pipeline.cuh",
       "kLong - inside, across + inside}", "kLong - inside, across + kDepth}"),
    _t("elements of the next group", "sm90/epilogue.cuh",
       "(kRows ? part.m : part.n) = tile.end;", ""),
    _t("an empty group has no turn", "sm90/sm90_wgmma.cuh",
       "          if (Config::kPingPong && index > scheduler.first()) order_wait(group);\n", ""),
    _t("an empty group takes k tiles of the other's", "sm90/sm90_wgmma.cuh",
       "          if (Config::kPingPong) skip(index + scheduler.step());\n", ""),
    _t("alpha stays 0 behind an empty group", "sm90/sm90_wgmma.cuh",
       "          epilogue.alpha = alpha;\n", ""),
    _p("addresses of boxes do not wrap around to the matrix", "run/tensormap.py",
       "_WRAP - step)", "_WRAP)", "executed"),
    _p("no room for the last tiles of groups", "problem/grouped.py",
       "return (along_m + problem.l) * along_n", "return along_m * along_n", "bound"),
    _p("groups begin at multiples of 16 bytes", "problem/matrix.py",
       "every = self.alignment | self.stride[self.modes.index(mode)] * self.element.bytes",
       "every = self.alignment"),
    _p("operands of the epilogue end with the group where C goes by TMA", "kernels/steps.py",
       'bool(getattr(self.config, "tma_c", False))', "False", "executed"),
    _p("block scales of all groups counted for each", "problem/grouped.py",
       "_part(problem, x, number, begin, x.shape)", "x", "executed"),
    _p("operands of the epilogue in vectors where groups begin anywhere", "problem/fuse.py",
       '{"M": along_m, "N": along_n}.get(problem.ragged, 0)', "0"),
    _p("operands of the epilogue of the first group", "toolchain/unit.py",
       'at = f" + group.begin', 'at = "" if True else f" + group.begin', "by_others"),
    _p("A of the first group, or B, or C", "toolchain/unit.py",
       "        if ragged in modes:\n            unit", "        if False:\n            unit",
       "by_others"),
    _p("groups in steps of a row where their stride is 1", "toolchain/unit.py",
       "{1 if unit else", "{1 if False else", "by_others"),
    _t("groups behind the first 32 begin at 0", "common/groups.cuh",
       "      before = __shfl_sync(~0u, end, 31);\n", "", "by_others"),
    _t("tiles behind the first 32 groups counted again", "common/groups.cuh",
       "      above += __shfl_sync(~0u, sum, 31);\n", "", "by_others"),
    _t("a CTA's tile counted from the first group", "common/groups.cuh",
       "    cta -= tiles_before;\n", "", "by_others"),
    _t("a CTA too many computes", "common/groups.cuh",
       "above + sum > cta", "above + sum >= cta", "by_others"),
    _p("rows of what TMA brings end with the group", "kernels/steps.py",
       "last = self.config.tile[mode] * (*self.config.cluster, 1)[mode]", "last = 0", "executed"),
    _p("rows of groups that begin at an aligned address", "problem/grouped.py",
       "residue = first % 256 or 256", "residue = 256", "executed"),
    _p("gradients of one group's bias go to the next", "torch/grouped.py",
       "offs, rows, right=True", "offs, rows, right=False", "bias"),
    _p("groups along the unit-stride mode are packed as they lie", "problem/passes.py",
       "unit = 1 - matrix.modes.index(problem.ragged)", "unit = matrix.unit", "unit_stride"),
    _p("groups along the unit-stride mode are taken", "kernels/sm90/wgmma.py",
       "if problem.groups_along_unit(matrix):", "if False:", "unit_stride"),
    _s("those of the first group's rows", "templates/sm90/scales.cuh",
       "a.start(tile.row, m, ", "a.start(0, m, "),
    _s("those of the first group's columns", "templates/sm90/scales.cuh",
       "b.start(tile.column, n, ", "b.start(0, n, "),
    _s("A's blocks of the first group", "templates/sm90/scales.cuh",
       "a.start(tile.row, m, batch, ", "a.start(tile.row, m, 0, "),
    _s("B's blocks of the first group", "templates/sm90/scales.cuh",
       "b.start(tile.column, n, batch, ", "b.start(tile.column, n, 0, "),
    _s("rows of each group are those of all", "cute_gemm/problem/scaling.py",
       "(*shape, 1), (*strides, 0)\n", "(shape[1], 1), (strides[1], 0)\n"),
    _s("groups before rows", "cute_gemm/problem/scaling.py",
       '("tensor", [(), (1,), (1, 1), (1, 1, 1)])',
       '("tensor", [(), (1,), (1, 1), (1, 1, 1), (groups,)])', "says"),
    _s("blocks of rows that straddle groups are taken", "cute_gemm/problem/scaling.py",
       "fitting += blocks if shared else blocks[:1]", "fitting += blocks", "refusals"),
    _s("blocks along a ragged k are taken", "cute_gemm/problem/scaling.py",
       'if problem.ragged != "K":\n        fitting', "if True:\n        fitting", "refusals"),
    _s("block scales of all groups on the host", "cute_gemm/problem/grouped.py",
       "        return array[part]\n    return array[g", "        return array\n    return array[g",
       "pair"),
    _s("block scales of the first group on the host", "cute_gemm/problem/grouped.py",
       "return array[g if len(array) > 1 else 0] if array.ndim", "return array[0] if array.ndim",
       "pair"),
    _s("blocks of ragged rows are taken for 128x128", "cute_gemm/problem/grouped.py",
       "replace(x, shape=(rows, x.shape[1])) if rows_mode", "x if rows_mode", "pair"),
    _s("fast_accum is left out", "cute_gemm/grouped.py",
       "    compute = with_fast_accum(compute, fast_accum)\n", "", "fast_accum"),
    Mutant("grouped: rows of no group of NumPy arrays are lost", "cute_gemm/executable.py",
           ' or self.problem.ragged in ("M", "N")', "", "group", ("tests/test_memory.py",)),
)  # fmt: skip
