"""Ways to break grouped GEMMs: their scheduler, ends of groups, tails along K."""

from __future__ import annotations

from mutant import Mutant

_TESTS = ("tests/test_grouped.py",)


def _t(name: str, file: str, old: str, new: str, only: str = "interpreted") -> Mutant:
    return Mutant(f"grouped: {name}", f"templates/{file}", old, new, only, _TESTS)


def _p(name: str, file: str, old: str, new: str, only: str = "interpreted") -> Mutant:
    return Mutant(f"grouped: {name}", f"cute_gemm/{file}", old, new, only, _TESTS)


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
       "kDepth - inside, across + inside}", "kDepth - inside, across + kDepth}"),
    _t("elements of the next group", "sm90/epilogue.cuh",
       "(kRows ? part.m : part.n) = tile.end;", ""),
    _t("an empty group has no turn", "sm90/sm90_wgmma.cuh",
       "          if (Config::kPingPong && index > scheduler.first()) order_wait(group);\n", ""),
    _t("an empty group takes k tiles of the other's", "sm90/sm90_wgmma.cuh",
       "          if (Config::kPingPong) skip(index + scheduler.step());\n", ""),
    _t("alpha stays 0 behind an empty group", "sm90/sm90_wgmma.cuh",
       "          epilogue.alpha = alpha;\n", ""),
    _p("a box counts from the matrix", "run/tensormap.py",
       "self.swizzle, -deep * step)", "self.swizzle)"),
    _p("no room for the last tiles of groups", "problem/grouped.py",
       "return (along_m + problem.l) * along_n", "return along_m * along_n", "bound"),
    _p("TMA stores where groups end anywhere", "kernels/sm90/wgmma.py",
       "if problem.groups_along_unit(problem.C):", "if False:"),
    _p("groups along the unit-stride mode are packed as they lie", "problem/passes.py",
       "unit = 1 - matrix.modes.index(problem.ragged)", "unit = matrix.unit", "packed"),
    _p("groups along the unit-stride mode are not packed", "select.py",
       "problem.groups_along_unit(matrix) or transposed", "transposed", "auto"),
    _p("groups along the unit-stride mode are taken", "kernels/sm90/wgmma.py",
       "if problem.groups_along_unit(matrix):", "if False:", "refused"),
)  # fmt: skip
