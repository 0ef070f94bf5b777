"""``sm90_wgmma``: a warp-specialized, persistent GEMM with TMA and wgmma.

One template (``templates/sm90/sm90_wgmma.cuh``) supports all types in layouts that TMA can load.
This module enumerates and checks configs and predicts how well each keeps the tensor cores busy;
``structure.py`` derives layouts, boxes and shared memory, and ``accesses.py`` lists the accesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod
from typing import TYPE_CHECKING, Any, ClassVar

from cute_gemm.access.accesses import Shares, Work
from cute_gemm.access.gmem import LINE
from cute_gemm.arch import Arch
from cute_gemm.cost_model.footprint import LOADED, Updates
from cute_gemm.dtypes import FLOAT8, OF_COMPONENTS
from cute_gemm.errors import UnsupportedError
from cute_gemm.gpus.occupancy import clusters_at_a_time
from cute_gemm.gpus.table import nearest
from cute_gemm.kernels.options import access_bytes, with_options
from cute_gemm.kernels.rules import first, in_range, memory_fits, positive, refuse
from cute_gemm.kernels.sm90.accesses import Sm90Accesses
from cute_gemm.kernels.sm90.structure import DEEP, MOST_COLUMNS, ROWS, Sm90Config
from cute_gemm.kernels.sm90.unit import EmitSm90Wgmma
from cute_gemm.kernels.tma import SPAN, tma_signature
from cute_gemm.problem.parts.groups import tiles_at_most
from cute_gemm.problem.parts.packing import of_all_groups, wants_k_major, whole
from cute_gemm.problem.parts.scales import SCALES, rows_mode
from cute_gemm.problem.parts.slices import of_pairs
from cute_gemm.toolchain.signature import Launch, Signature

if TYPE_CHECKING:
    from cute_gemm.cost_model.calibration import Calibration, Pace
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.run.tensormap import TensorMap

#: Most accumulators of a thread if C is stored by TMA, and element by element: with more, ptxas
#: spills registers. Other registers of a thread, and other registers with rows of A.
_ACCUMULATORS, _ACCUMULATORS_OF_ELEMENTS, _OTHERS, _OTHERS_WITH_ROWS = 192, 128, 40, 56
#: With more accumulators than this, an epilogue's vector is loaded where it is used.
_FEW_ACCUMULATORS = 144
#: Other registers with separate accumulators of a k tile; and with rows of A and zeros.
_OTHERS_WITH_PRODUCTS, _OTHERS_WITH_ZEROS = 24, 48
#: Other registers with operands of an epilogue; and for each that is loaded element by element.
_OPERANDS, _SINGLE = 48, 32
#: The columns of a warp group are a multiple of this: a warp's columns of C in one store.
STEP = 16
#: bM x bN as the kernel sees it, warp groups, and CTAs of a cluster; tuned on an H200.
_TILES: tuple[tuple[int, int, int, int, tuple[int, int]], ...] = tuple(
    (bm, bn, groups, ping_pong, cluster)
    for bm, groups, ping_pong, cluster, columns in (
        (64, 1, 0, (1, 1), (16, 32, 64, 80, 96, 128, 192, 256)),
        (64, 1, 0, (1, 2), (96, 160, 176)),
        (64, 1, 0, (1, 4), (32, 64, 96, 128, 160, 192, 224)),
        (64, 1, 0, (2, 1), (64, 96)),
        (64, 1, 0, (2, 2), (192,)),
        (64, 1, 0, (2, 4), (32, 96, 192)),
        (64, 1, 0, (4, 1), (32, 64, 96, 160, 192)),
        (64, 1, 0, (4, 2), (32, 64, 96, 128, 160)),
        (64, 2, 1, (1, 1), (128, 192)),
        (128, 2, 0, (1, 1), (16, 32, 64, 96, 128, 144, 160, 176, 192, 224, 240, 256, 288)),
        (128, 2, 0, (1, 2), (64, 96, 128, 160, 192)),
        (128, 2, 0, (1, 4), (64, 96, 112, 128, 160, 176, 192)),
        (128, 2, 0, (2, 1), (64, 96, 128, 144, 160, 192, 240, 256, 288)),
        (128, 2, 0, (2, 2), (128, 144, 160)),
        (128, 2, 0, (2, 4), (96, 128)),
        (128, 2, 0, (4, 1), (32, 96, 128, 160, 192, 224)),
        (128, 2, 0, (4, 2), (64, 160)),
        (128, 2, 1, (1, 1), (80, 96, 128, 144, 160, 176, 192)),
        (128, 2, 1, (1, 2), (80, 128, 192)),
        (128, 2, 1, (1, 4), (96, 128)),
        (128, 2, 1, (2, 1), (128, 160, 176, 192)),
        (128, 2, 1, (2, 2), (128,)),
        (128, 2, 1, (2, 4), (80, 96, 128, 160)),
        (128, 2, 1, (4, 1), (128, 160)),
        (128, 2, 1, (4, 2), (96, 128)),
        (192, 2, 0, (1, 1), (192, 224)),
        (192, 2, 0, (2, 1), (192,)),
        (192, 2, 0, (4, 1), (192,)),
        (192, 2, 1, (1, 1), (128,)),
        (192, 2, 1, (2, 1), (128,)),
        (192, 3, 0, (1, 1), (64, 96, 128, 144, 192)),
        (192, 3, 0, (1, 2), (96, 128)),
        (192, 3, 0, (1, 4), (144,)),
        (192, 3, 0, (2, 1), (144, 192)),
        (192, 3, 0, (2, 2), (96,)),
        (192, 3, 0, (4, 1), (96,)),
        (256, 2, 0, (1, 1), (128, 144, 160)),
        (256, 2, 0, (1, 2), (128,)),
        (256, 2, 0, (2, 1), (160,)),
        (256, 2, 0, (4, 1), (96, 160)),
        (256, 2, 0, (4, 2), (128,)),
    )
    for bn in columns
)
#: Further tiles for promoted accumulators: then at least half of the registers are for products.
_PROMOTED_TILES = tuple(
    (bm, bn, 2, 0, cluster)
    for bm, cluster, columns in (
        (128, (1, 1), (112,)),
        (128, (2, 1), (112, 176)),
        (256, (1, 1), (64, 80, 96, 112)),
        (256, (2, 1), (64, 96, 112, 128)),
        (256, (1, 2), (64, 96, 112)),
    )
    for bn in columns
)
#: Clocks of the tensor cores for the products of a k tile of a warp's 32 accumulators. 8-bit floats
#: have 32 x 128 products, at 1,024 a clock of a quarter of a multiprocessor, which issues an
#: instruction a clock; components have 32 x 64, at 512.
_PRODUCTS = 4.0
#: With block scales, fitted to 252 times of 30 products on an H200: clocks until products are
#: ready, also if another warp group multiplies meanwhile, and with two sets of accumulators; clocks
#: of each scale that a thread reads; and the slowdown of clusters.
_SCALED = {
    "waited": 107.0, "waited_overlapped": 0.0, "waited_two_sets": 80.0, "scale": 4.0,
    "cluster": 1.01,
}  # fmt: skip
#: Bytes of k of a tile, and the most stages.
_DEEP, _STAGES = 128, 12
#: Multiprocessors of the largest Hopper GPU.
_MOST_SMS = 144
#: Results of a tile.
_AREAS = tuple(bm * bn for bm, bn, *_ in _TILES)


class Sm90Wgmma(Sm90Accesses):
    """Warp-specialized kernel for rows of A and B that begin at multiples of 16 bytes.

    From shared memory wgmma reads MN-major operands only with 2-byte elements. For tf32, int8 and
    8-bit floats one MN-major operand passes through registers, and a second one is packed K-major
    first. Accumulators of 8-bit floats are promoted to float32 after 128 of k, except with
    `FAST_ACCUM`. float32 is multiplied as tf32, or as three packed bfloat16 components.
    """

    name = "sm90_wgmma"
    persistent: ClassVar = True
    takes: ClassVar = frozenset(("epilogue", "pairs", "groups", "scales"))
    batch_invariant: ClassVar = True
    summary = "TMA into a ring of swizzled stages, wgmma from shared memory, persistent grid"
    minimum_cc = 90
    needs: ClassVar = "wgmma"
    dtypes = ("float16", "bfloat16", "float32/tf32", *OF_COMPONENTS, "int8", *FLOAT8)
    options = (
        "tile", "warp_groups", "ping_pong", "stages", "cluster", "raster", "swap_ab", "min_ctas",
    )  # fmt: skip
    label_options: ClassVar = {
        "warp_groups": "g{}", "ping_pong": "p", "cluster": "c{}", "swap_ab": "x",
    }  # fmt: skip
    option_values: ClassVar = {
        "tile": "bM x bN x bK of a CTA: 128x256x64",
        "warp_groups": "warp groups that multiply, 1 to 3",
        "ping_pong": "0: warp groups share each tile; 1: they take turns with whole tiles",
        "stages": "2 to 12",
        "cluster": "CTAs along M, which share B, x along N, which share A: 2x1; 1, 2 or 4 each",
        "swap_ab": "0, or 1 to compute C^T with A and B swapped",
    }
    emitter: ClassVar = EmitSm90Wgmma

    def signature(self, config: Sm90Config) -> Signature:
        """Return the parameters of a GEMM and the matrices' tensor maps."""
        return tma_signature(config.operation)

    def pace(self, config: Sm90Config, calibration: Calibration) -> Pace:
        """Return the pace.

        Factors of a calibration: ``meeting``, clocks of a tile that CTAs of a cluster wait for each
        other; ``pair``, factor on TMA's clocks in a cluster of two; ``box``, clocks of a box of C;
        ``spilled``, clocks of a CTA for each accumulator of a thread if an epilogue's values exceed
        the registers. Slowdowns of products: ``many_accumulators``, with more than 128 accumulators
        of a thread and warp groups that share a tile; ``by_turns``, with warp groups that take
        turns; ``alone``, if one of these has the only tile. ``exposed`` is the part of a tile's
        start and end that is not hidden if warp groups take turns, ``exposed_together`` if they
        share it.
        ``between``: columns whose products take as long as the gap between two steps of k, if A
        passes through registers, by the bytes of an element. ``shown``: part of the clocks of
        adding promoted products that is not hidden; ``waited``: clocks until products are ready;
        ``_overlapped``: the same if another warp group multiplies meanwhile.
        """
        pace = super().pace(config, calibration)
        factors = calibration.factors[self.name]
        slowdown = pace.slowdown
        if config.ping_pong:
            slowdown *= factors["by_turns"]
            lone = factors["alone"] / factors["by_turns"]
            pace = pace._replace(exposed=factors["exposed"], lone=lone)
        else:
            pace = pace._replace(exposed=factors["exposed_together"])
            if config.accumulators_per_thread > 128:
                slowdown *= factors["many_accumulators"]
        if config.operation.promoted:
            # A warp group adds while another one, if any, multiplies.
            overlapped = "_overlapped" * (config.sharers_of_tile > 1)
            adds = config.adds_per_product
            waited = factors["waited" + overlapped]
            if any(config.operation.scales):
                kind = "_two_sets" if config.product_sets == 2 else overlapped
                waited = _SCALED["waited" + kind]
                read = sum(config.scales_of_thread) * config.products_of_thread
                waited += _SCALED["scale"] * read / config.accumulators_per_thread
                slowdown *= _SCALED["cluster"] if prod(config.cluster) > 1 else 1.0
            waited /= config.products_of_thread
            slowdown *= 1 + (adds * factors["shown" + overlapped] + waited) / _PRODUCTS
            pace = pace._replace(adds=adds * config.operation.component_products)
        if config.register_a:
            by_turns = "_by_turns" * bool(config.ping_pong)
            between = factors[f"between_{config.operation.a.bytes}{by_turns}"]
            slowdown *= 1 + between / (config.columns * config.sharers_of_tile)
        return pace._replace(
            slowdown=slowdown, start=pace.start + factors["meeting"] * (prod(config.cluster) > 1),
            box=factors["box"] / config.sharers_of_tile, ahead=config.stages - 1, wgmma=True,
            tma=factors["pair"] if prod(config.cluster) == 2 else 1.0,
        )  # fmt: skip

    def candidates(
        self, problem: GemmProblem, arch: Arch, options: dict[str, Any]
    ) -> Iterator[Sm90Config]:
        a, b = (access_bytes(_in_boxes(x, problem), False)[0] for x in (problem.A, problem.B))
        c = access_bytes(problem.C, True)[0]  # TMA writes 16 bytes at a time
        operation, scales = problem.operation(a, b, c), _tma_scales(problem)
        deep = _DEEP // operation.a.bytes
        tiles = (*_PROMOTED_TILES, *_TILES) if operation.promoted else _TILES
        for bm, bn, groups, ping_pong, (cluster_m, cluster_n) in tiles:
            for swap_ab in (int(problem.C.major == "N"), int(problem.C.major != "N")):
                config = Sm90Config(
                    tile=(bn, bm, deep) if swap_ab else (bm, bn, deep), warp_groups=groups,
                    ping_pong=ping_pong, stages=2,
                    cluster=(cluster_n, cluster_m) if swap_ab else (cluster_m, cluster_n),
                    raster=8,
                    swap_ab=swap_ab, min_ctas=1, tma_c=c == 16, tma_scales=scales,
                    operation=operation,
                )  # fmt: skip
                config = with_options(config, options)
                broken = first(_broken(config))
                if "stages" not in options and not broken:
                    limit = arch.shared_limit // config.min_ctas
                    config = replace(config, stages=config.most_stages(_STAGES, limit))
                if broken or "tile" in options or not _narrow_boxes(config):
                    yield config

    def legal(self, problem: GemmProblem, arch: Arch, options: dict[str, Any]) -> list[Sm90Config]:
        if not options:  # operands that no tile takes are refused without all tiles
            usual = int(problem.C.major == "N")
            try:
                self._check_operands(problem, usual)
            except UnsupportedError:
                self._check_operands(problem, 1 - usual)
        return super().legal(problem, arch, options)

    def _check_operands(self, problem: GemmProblem, swap_ab: int) -> None:
        """Raise UnsupportedError for operands whose layouts TMA or wgmma do not support."""
        for matrix in (problem.A, problem.B):
            if lacks := first(_lacks(matrix, problem, swap_ab)):
                raise UnsupportedError(
                    f"kernel {self.name!r} {lacks}: pack it, with option pack={matrix.name!r} or "
                    "'AB'"
                )

    def check(self, config: Sm90Config, problem: GemmProblem, arch: Arch) -> None:
        self._check_operands(problem, config.swap_ab)
        refuse(_broken(config))
        if why := _not_paired(problem):
            raise UnsupportedError(
                f"kernel {self.name!r} takes {problem.epilogue.pairs} of columns where {why}: "
                "here a separate launch pairs them"
            )
        refuse(_beyond(config, arch))
        if (
            tiles_at_most(problem, config.tile) >= 2**31 - 1024
            or max(problem.m, problem.n) > 2**31 - 2048
        ):
            raise UnsupportedError(
                f"m={problem.m}, n={problem.n}, l={problem.l}: kernel {self.name!r} counts tiles "
                "in 32-bit integers"
            )

    def traits(self, problem: GemmProblem) -> Any:
        huge = problem.m * problem.n * problem.l >= 2**31 * min(_AREAS)
        extents = (problem.m, problem.n, problem.l) * huge
        in_groups: tuple[int, ...] = ()
        if problem.groups.mode == "K":
            in_groups = tuple(_in_boxes(x, problem).alignment for x in (problem.A, problem.B))
        return extents, in_groups, _not_paired(problem), _tma_scales(problem)

    def of_operand(self, config: Sm90Config, name: str) -> Any:
        """Return the properties of a config that the accesses of an operand depend on.

        For A or B these are its boxes. If rows of a tile are not whole lines, tiles begin at
        different places of a line. If A passes through registers, threads read it, once for each
        warp group along N and partly ahead, and the accumulators lie differently. For C these are
        the warp groups' parts of a tile, and the width of an epilogue tile, which may depend on the
        stages.
        """
        by_threads, sampled = config.register_a, config.turned(self.sampled(config))
        for plan, tiles in zip(config.operands, sampled, strict=True):
            if plan.source == name:
                first = plan is config.operands[0]
                reads = config.kernel_tile[1] // config.columns if by_threads and first else 0
                more = first and config.reads_ahead, config.zero_fills
                apart = tiles * (plan.span < SPAN or plan.pitch > 0)
                products = config.operation.component_products
                pairs = config.operation.epilogue.pairs
                return (
                    plan.extents, plan.box, plan.span, plan.sharers, apart, reads, *more, products,
                    pairs,
                )  # fmt: skip
        operation, columns = config.operation, config.epilogue_tile.layout.extents
        if name == "C":
            # Tiles along M lie alike in lines, unless 64 rows are not a whole line.
            out = operation.c.bytes
            return (
                config.kernel_tile[:2], config.results, columns, sampled if out == 1 else (),
                config.swap_ab, config.tma_c, by_threads and operation.a.bytes, out,
                operation.majors[2], operation.epilogue.pairs,
            )  # fmt: skip
        return replace(config, stages=2, operation=replace(operation, bytes=(16, 16, 16))), columns

    def sampled(self, config: Sm90Config) -> tuple[int, int]:
        """Return the CTAs of clusters up to the next one whose columns begin with a line of L2.

        Elements are assumed to have 2 bytes: only these have columns as unit-stride mode.
        """
        cluster_m, cluster_n = config.kernel_cluster
        clusters = LINE // gcd(LINE, 2 * config.kernel_tile[1] * cluster_n)
        return config.turned((cluster_m, cluster_n * clusters))

    def launch(self, config: Sm90Config, problem: GemmProblem) -> Launch:
        """Return a persistent grid for an H100, with as many CTAs as run at a time."""
        return self.launch_on(config, problem, nearest(Arch("sm_90a")).sms)

    def launch_on(self, config: Sm90Config, problem: GemmProblem, sms: int) -> Launch:
        ctas = prod(config.cluster)
        bm, bn = (tile * n for tile, n in zip(config.tile, config.cluster, strict=False))
        clusters = tiles_at_most(problem, (bm, bn))
        places = clusters_at_a_time(min(sms, _MOST_SMS), ctas) * config.min_ctas
        return Launch(
            min(clusters, places) * ctas, config.threads, config.smem, cluster=ctas, dependent=True,
            tiles=clusters * ctas, places=places * ctas,
        )  # fmt: skip

    def maps(self, config: Sm90Config, problem: GemmProblem) -> tuple[TensorMap | None, ...]:
        from cute_gemm.run.tensormap import TensorMap

        plans = {plan.source: plan for plan in config.operands}
        pairs, ragged, tile = problem.epilogue.pairs, problem.groups.mode, config.epilogue_tile
        maps: list[TensorMap | None] = []
        for operand, factor in zip((problem.A, problem.B), config.operation.factors, strict=True):
            matrix, plan = whole(operand, problem), plans[operand.name]
            if pairs and matrix.name == "B":
                matrix = of_pairs(matrix, pairs)
            from_group = ragged == "K" and not config.zero_fills
            # TMA rounds elements to tf32.
            maps.append(TensorMap(matrix, plan.box, plan.span, factor.name, in_groups=from_group))
        of_c = TensorMap(problem.C, tile.box, tile.span, in_groups=ragged in ("M", "N"))
        maps.append(of_c if config.tma_c else None)
        for scale in problem.scales:
            side = SCALES.index(scale.name)
            box = TensorMap(scale, (config.tile[side], 1), 0)
            maps.append(box if config.tma_scales[side] else None)
        return tuple(maps)

    def updates(self, config: Sm90Config) -> Updates:
        if config.tma_c:
            return Updates()
        groups = -(-config.accumulators_per_thread // LOADED)
        return Updates(groups // 2 if config.ping_pong else groups)  # two tiles at a time

    def spill_clocks(self, config: Sm90Config, calibration: Calibration) -> float:
        # A matrix that is not loaded in pairs of neighbours has a register for each value.
        across = config.turned(("M", "N"))[1]
        single = [
            x for x in config.operation.epilogue.operands
            if x.modes == "MN" and (x.unit != across or x.vector < 2)
        ]  # fmt: skip
        accumulators = config.accumulators_per_thread
        needs = accumulators + _OTHERS + _OPERANDS + _SINGLE * len(single)
        spilled = calibration.factors[self.name]["spilled"]
        return spilled * accumulators * bool(single) if needs > config.registers else 0.0

    def summation(self, config: Sm90Config) -> str:
        operation = config.operation
        parts = [f"wgmma of {DEEP // operation.a.bytes} of k, in order"]
        if operation.promoted:
            parts.append(
                f"those of {config.tile[2]} of k are added in {operation.accumulator.name}"
            )
        if operation.component_products > 1:
            parts.append(f"products of components as {operation.compute} has them")
        if config.zero_fills:
            parts.append(f"from the multiple of {16 // operation.a.bytes} of k before each group")
        return ", ".join(parts)

    def work(self, config: Sm90Config, problem: GemmProblem) -> Work:
        work = Work.of_tiles(problem, config.tile, "tensor cores", problem.factor.name)
        return replace(work, products=work.products * config.operation.component_products)

    def shares(self, config: Sm90Config) -> Shares:
        reader = config.turned((ROWS, config.columns))
        return Shares(config.tile[:2], reader, (("bM", "bN"), ("wM", "wN")))


def _lacks(matrix: Matrix, problem: GemmProblem, swap_ab: int) -> Iterator[str]:
    """Yield why TMA or wgmma do not support the layout of A or B."""
    name, ragged = matrix.name, problem.groups.mode
    if ragged != "K" and problem.groups_along_unit(matrix):
        yield (
            f"needs groups aligned to 16 bytes, and those of {name} may begin at any element, "
            f"since {ragged} is ragged and its unit-stride mode"
        )
    width, limit = access_bytes(_in_boxes(matrix, problem), False)
    if width < 16:
        yield (
            f"needs rows of A and B aligned to 16 bytes, and those of {name} are not, because of "
            f"{limit}"
        )
    # wgmma reads these K-major from shared memory; A may pass through registers.
    shared = name == ("A" if swap_ab else "B")
    if wants_k_major(problem) and matrix.major != "K" and shared:
        yield (
            f"with swap_ab={swap_ab} takes {problem.spelled} with K as the unit-stride mode of "
            f"{name}, and that is {'MN'[name == 'B']}"
        )


def _in_boxes(matrix: Matrix, problem: GemmProblem) -> Matrix:
    """Return A or B with the alignment that TMA needs: along K boxes begin at any element."""
    return of_all_groups(matrix, "K") if problem.groups.mode == "K" else matrix


def _tma_scales(problem: GemmProblem) -> tuple[bool, bool]:
    """Return whether TMA can copy block scales of A and of B: one for each row, side by side.

    TMA's boxes begin at multiples of 16 bytes, but groups of rows at any row.
    """
    if not problem.scales:
        return False, False
    able = {
        x.name: x.shape[0] == problem.rows_of(x.name) and x.stride[0] == 1
        and access_bytes(x, False)[0] == 16 and x.batch_bytes % 16 == 0
        and rows_mode(x.name) != problem.groups.mode
        for x in problem.scales
    }  # fmt: skip
    return able.get("scale_a", False), able.get("scale_b", False)


def _narrow_boxes(config: Sm90Config) -> bool:
    """Return whether TMA moves 32-byte rows of an MN-major A or B.

    On an H200 kernels with such boxes took up to 1.9 times the time predicted from their counts,
    with most leading dimensions, and were seldom the fastest.
    """
    return any(plan.major != "K" and plan.span == 32 for plan in config.operands)


def _broken(config: Sm90Config) -> Iterator[str]:
    """Yield a sentence for each rule of its shape that a config breaks."""
    yield from in_range(config, "warp_groups", 1, 3)
    yield from in_range(config, "stages", 2, 12)
    for option in ("swap_ab", "ping_pong"):
        if (value := getattr(config, option)) not in (0, 1):
            yield f"option {option}={value} is out of range; expected 0 or 1"
    if not {*config.cluster} <= {1, 2, 4} or prod(config.cluster) > 8:
        yield f"option cluster={config.cluster}; expected 1, 2 or 4 each, at most 8 CTAs"
    yield from positive(config, "raster", "min_ctas")
    if config.ping_pong and config.warp_groups != 2:
        yield f"option ping_pong=1 needs warp_groups=2; it is {config.warp_groups}"
    bm, bn, bk = config.kernel_tile
    along, across = config.turned(("M", "N"))
    if bm < ROWS or bm % ROWS:
        yield (
            f"option tile={config.tile}: with swap_ab={config.swap_ab} its {along} extent must "
            f"be a multiple of {ROWS}; it is {bm}"
        )
    side_by_side = config.side_by_side
    if config.operation.epilogue.pairs and (config.swap_ab or side_by_side):
        said = "swap_ab=1" if config.swap_ab else f"tile={config.tile}, divided along N,"
        yield (
            f"option {said} came with an epilogue of pairs of columns; expected swap_ab=0 and "
            "warp groups along M, so that a thread has both columns of a pair"
        )
    # A row of an epilogue tile that TMA stores has 32 bytes or more.
    least = max(STEP, 32 // config.operation.c.bytes) * config.columns_of_result
    step, most = (n * (config.warp_groups if side_by_side else 1) for n in (least, MOST_COLUMNS))
    if not step <= bn <= most or bn % step:
        yield (
            f"option tile={config.tile}: with warp_groups={config.warp_groups} and "
            f"swap_ab={config.swap_ab} its {across} extent must be a multiple of {step} up to "
            f"{most}; it is {bn}"
        )
    for extent, sharers in zip((bn, bm), config.kernel_cluster, strict=True):
        if extent % (8 * sharers):
            yield (
                f"option tile={config.tile}: with cluster={config.cluster} each CTA loads a part "
                f"of {extent}, which must be a multiple of 8: take another tile or cluster"
            )
    deep = _DEEP // config.operation.a.bytes
    if config.operation.promoted and bk != deep:
        yield (
            f"option tile={config.tile}: its K extent must be {deep}, after which accumulators of "
            f"{config.operation.a.name} are promoted to float32; it is {bk}"
        )
    if bk not in (deep, 2 * deep):
        yield f"option tile={config.tile}: its K extent must be {deep} or {2 * deep}; it is {bk}"


def _not_paired(problem: GemmProblem) -> str:
    """Return what a problem lacks for an epilogue of pairs of columns, or ""."""
    B, pairs = problem.B, problem.epilogue.pairs
    if pairs and problem.scales:
        return "scales are tensor scales or row scales"
    if pairs == "pairs" and B.major == "MN":
        return "K is B's unit-stride mode"
    if pairs == "halves" and B.major == "MN" and B.shape[0] // 2 * B.element.bytes % 16:
        return (
            f"n / 2 is a multiple of 16 bytes, or K is B's unit-stride mode, and n is {problem.n}"
        )
    return ""


def _operand_registers(config: Sm90Config) -> int:
    """Return the registers of a thread for an epilogue's operands.

    With more than 144 accumulators and warp groups that take turns, a single vector is loaded where
    it is used: ptxas spills up to 55 registers for it, all outside the main loop.
    """
    operands = config.operation.epilogue.operands
    many = config.ping_pong and config.accumulators_per_thread > _FEW_ACCUMULATORS
    if many and len(operands) == 1 and operands[0].modes != "MN":
        return 0
    return _OPERANDS * bool(operands)


def _beyond(config: Sm90Config, arch: Arch) -> Iterator[str]:
    """Yield a sentence for each limit of registers and shared memory that a config exceeds."""
    accumulators = config.accumulators_per_thread
    most = _ACCUMULATORS if config.tma_c else _ACCUMULATORS_OF_ELEMENTS
    others = config.rows_of_thread + _OTHERS_WITH_ROWS if config.register_a else _OTHERS
    others += _operand_registers(config)
    if config.operation.promoted:
        # The epilogue reuses the main loop's registers.
        scales = sum(config.scales_of_thread)
        loop = config.products_of_thread + scales + config.rows_of_thread
        zeros = config.zero_fills and config.register_a
        others = max(others, loop + (_OTHERS_WITH_ZEROS if zeros else _OTHERS_WITH_PRODUCTS))
    if accumulators > most or accumulators + others > config.registers:
        yield (
            f"option tile={config.tile} with warp_groups={config.warp_groups} and "
            f"min_ctas={config.min_ctas} needs {accumulators} registers of a thread for "
            f"accumulators and about {others} more; it has {config.registers}, of which {most} can "
            "be accumulators"
        )
    what = f"tile={config.tile} with stages={config.stages}"
    yield from memory_fits(what, config.smem, arch, "fewer stages or a smaller tile")
