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
    _t("k of the next group, of A", "sm90/groups.cuh",
       "      if constexpr (Config::kMajorKA) set_zero", "      if constexpr (false) set_zero"),
    _t("k of the next group, of B", "sm90/groups.cuh",
       "      if constexpr (Config::kMajorKB) set_zero", "      if constexpr (false) set_zero"),
    _t("the first k tile is cut", "sm90/groups.cuh", "k_tile != last", "k_tile != 0"),
    _t("zeros in whole vectors alone", "sm90/groups.cuh",
       "if (k + e >= inside) values[e]", "if (false) values[e]"),
    _t("zeros are not shown to wgmma", "sm90/groups.cuh",
       'asm volatile("fence.proxy.async.shared::cta;\\n" ::: "memory");', ""),
    _t("zeros are not waited for", "sm90/groups.cuh",
       'asm volatile("bar.sync %0, %1;\\n" ::"r"(6), "r"(int(kThreads)) : "memory");', ""),
    _t("zeros are not waited for, by turns", "sm90/groups.cuh", "warpgroup_sync(group);", ""),
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
       "c = problem.C.element.bytes  # groups", "c = c  # groups"),
)  # fmt: skip
