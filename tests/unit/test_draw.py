"""Test that pictures agree with the models: marked cells are counted, labels are parsed."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from cute_gemm.access import gmem, smem
from cute_gemm.access.accesses import GlobalAccess, SharedAccess, TmaAccess
from cute_gemm.cost_model.prediction import Prediction
from cute_gemm.cute.atoms import cp_async
from cute_gemm.cute.copies import gmem_tiled_copy
from cute_gemm.cute.layout import Layout, Swizzle, column_major
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.rendering import pictures as draw
from cute_gemm.rendering.rows import make_row
from cute_gemm.report import times
from cute_gemm.report.performance import performance
from cute_gemm.toolchain.signature import Launch

LANES = np.arange(32)


def parse(picture):
    root = ET.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return root


def classed(picture, name):
    return [e for e in parse(picture).iter() if name in e.get("class", "").split()]


def labels(picture):
    return [e.text for e in parse(picture).iter("{http://www.w3.org/2000/svg}text")]


def places(picture):
    """Return (x, y, text, anchor, size in pixels) of every text, with attributes of its groups."""
    found = []

    def walk(element, x, y, said):
        said = {**said, **element.attrib}
        if move := re.match(r"translate\(([\d.]+) ([\d.]+)\)", element.get("transform", "")):
            x, y = x + float(move[1]), y + float(move[2])
        if element.tag.endswith("}text"):
            at = (x + float(said["x"]), y + float(said["y"]))
            anchor = said.get("text-anchor", "start")
            found.append((*at, element.text, anchor, float(said["font-size"])))
        for child in element:
            walk(child, x, y, said)

    walk(parse(picture), 0.0, 0.0, {})
    return found


REQUESTS = {
    "floats": (LANES * 4, np.full(32, 4), 0), "vectors": (LANES * 16, np.full(32, 16), 0),
    "off a sector": (LANES * 4, np.full(32, 4), 16), "distant": (LANES * 4096, np.full(32, 2), 0),
    "far": (LANES * 2**24 + 2**40, np.full(32, 16), 64), "halves": (LANES * 2, np.full(32, 2), 2),
    "bytes": (LANES * 1 + 100, np.full(32, 1), 0),
    "one word": (np.zeros(32, int), np.full(32, 4), 0),
    "over lines": (LANES * 200 + 120, np.full(32, 16), 0),
    "some lanes": (np.where(LANES % 3 == 0, LANES * 40, -1), np.where(LANES % 3 == 0, 8, 0), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_shows_the_sectors_of_the_model(name):
    starts, lengths, base = REQUESTS[name]
    picture = draw.request(starts, lengths, base, name)
    used = {
        base + byte
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        if start >= 0
        for byte in range(start, start + length)
    }
    sectors = {byte // 32 for byte in used}
    assert len(classed(picture, "sector")) == len(sectors)
    wasted = sum(float(e.get("width")) for e in classed(picture, "waste")) / draw.requests._BYTE
    assert wasted == pytest.approx(32 * len(sectors) - len(used))
    assert f" {len(sectors)} sector" in picture
    assert f"where {-(-len(used) // 32)} would do" in picture
    assert f"efficiency {100 * len(used) / 32 / len(sectors):.1f} %" in " ".join(labels(picture))


@pytest.mark.parametrize("name", ["floats", "vectors", "distant", "far", "halves", "over lines"])
def test_every_lane_of_a_request_is_numbered(name):
    picture = draw.request(*REQUESTS[name])
    named = {m[1] for t in labels(picture) if (m := re.fullmatch(r"(?:lane )?(\d+)", t))}
    assert named >= {str(lane) for lane in range(32)}


def test_lanes_too_narrow_for_numbers_are_named_together():
    assert "10-27" in labels(draw.request(*REQUESTS["bytes"]))  # 28 and higher are in the next line
    assert "0-31" in labels(draw.request(*REQUESTS["one word"]))


def test_a_request_names_the_bytes_at_which_its_lines_begin():
    assert {"0", "4,096", "126,976"} <= set(labels(draw.request(*REQUESTS["distant"])))
    assert "-16" in labels(draw.request(*REQUESTS["off a sector"]))


def test_inactive_lanes_are_not_drawn():
    starts, lengths, base = REQUESTS["some lanes"]
    assert len(classed(draw.request(starts, lengths, base), "lane")) == 11
    none = draw.request(np.full(32, -1), np.zeros(32, int))
    assert not classed(none, "lane")
    assert "No lane takes part." in labels(none)


SHARED = {
    "row": ("ld.shared", 32, LANES * 4), "one bank": ("ld.shared", 32, LANES * 128),
    "two ways": ("st.shared", 32, LANES * 8), "broadcast": ("ld.shared", 32, LANES // 4 * 4),
    "both": ("ld.shared", 32, LANES // 2 * 128), "bytes": ("ld.shared", 8, LANES * 3),
    "doubles": ("ld.shared", 64, LANES * 64), "vectors": ("cp.async", 128, LANES * 16),
    "pitch": ("ldmatrix.x4", 128, LANES * 128), "x2": ("ldmatrix.x2.trans", 128, LANES * 32),
    "some": ("st.shared", 32, np.where(LANES % 2, -1, LANES * 64)),
    "none": ("st.shared", 32, np.full(32, -1)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_banks_marks_the_conflicts_of_the_model(name):
    instruction, bits, offsets = SHARED[name]
    picture = draw.banks(instruction, bits, offsets, name)
    words = smem.phase_words(instruction, bits, offsets)
    wavefronts, distinct = smem.phase_wavefronts(words)
    crowded = calm = 0
    for phase in words[0]:
        by_bank = np.bincount(np.unique(phase[phase >= 0]) % 32, minlength=32)
        crowded += int(by_bank[by_bank > 1].sum())
        calm += int((by_bank == 1).sum())
    assert len(classed(picture, "conflict")) == crowded
    assert len(classed(picture, "word")) + len(classed(picture, "broadcast")) == calm
    assert len(classed(picture, "wavefront")) == wavefronts.sum()
    if wavefronts.sum():
        more = int(wavefronts.sum() - (-(-distinct // 32)).sum())
        assert f" {more} bank conflict" in picture
        assert f" {wavefronts.sum()} wavefront" in picture


def test_a_word_that_lanes_share_is_a_broadcast_not_a_conflict():
    picture = draw.banks(*SHARED["broadcast"])
    assert len(classed(picture, "broadcast")) == 8
    assert {"0-3", "4-7", "x4"} <= set(labels(picture))
    both = draw.banks(*SHARED["both"])
    assert len(classed(both, "shared")) == 16  # conflicts whose words two lanes share


def test_banks_says_which_lane_uses_which_word():
    picture = draw.banks("ld.shared", 32, LANES[::-1] * 4)
    row = [t for *_, t, anchor, size in places(picture) if size == 10 and anchor == "middle"]
    assert row[32:64] == [str(31 - bank) for bank in range(32)]  # after the banks
    tips = [e[0].text for e in classed(picture, "word")]
    assert "bank 31, bytes 124-127: lane 0" in tips


def test_lanes_beyond_the_matrices_do_not_count():
    assert "lanes 16-23" not in " ".join(labels(draw.banks(*SHARED["x2"])))


def table(threads, values):
    return gmem_tiled_copy(cp_async(128), 16, threads, values)


def test_each_thread_and_value_is_in_its_cell():
    copy = gmem_tiled_copy(cp_async(32), 16, column_major(4, 2), Layout((1, 2), (0, 1)))
    # Values two columns apart: no vector, so each has its own cell.
    spread = copy.partition.copy()
    spread[:, 1, 1] = spread[:, 0, 1] // 2 + 2
    spread[:, 0, 1] //= 2
    found = places(draw.tv_layout(spread, (4, 4)))
    cells = {t: (x, y) for x, y, t, *_ in found if re.fullmatch(r"T\d+ V\d+", t or "")}
    cells.pop("T0 V0")
    named = {f"T{t} V{v}" for t, v in product(range(8), range(2))}
    assert set(cells) | {"T0 V0"} == named
    # T1 is below the row of T0, V1 to the right of V0
    assert cells["T1 V1"][1] > cells["T0 V1"][1]
    assert cells["T1 V1"][0] > cells["T1 V0"][0]


def test_values_in_a_row_share_a_cell():
    copy = table(column_major(16, 8), column_major(8, 1))
    text = labels(draw.tv_layout(copy.partition, copy.tile))
    assert {f"T{t} V0-7" for t in range(128)} <= set(text)
    assert "A cell is 8 elements along mode 0." in " ".join(text)
    assert "Shown" not in " ".join(text)


def test_neighbouring_values_of_two_threads_are_no_vector():
    # T0 V1 and T1 V0 are adjacent, T0 V0 and V1 are not.
    strange = np.array([[[0, 1], [0, 2]], [[0, 3], [0, 0]]])
    assert {"T0 V1", "T1 V0"} <= set(labels(draw.tv_layout(strange, (1, 4))))
    threes = np.stack([np.zeros((2, 3), int), np.arange(6).reshape(2, 3)], axis=-1)
    text = set(labels(draw.tv_layout(threes, (1, 6))))
    assert {f"T{t} V{v}" for t, v in product(range(2), range(3))} <= text


def test_a_large_tile_is_cropped_and_says_so():
    copy = table(column_major(128, 1), column_major(1, 1))
    text = " ".join(labels(draw.tv_layout(copy.partition, copy.tile)))
    assert "Shown: the first 32x1 of 128x1." in text
    assert "T31 V0" in text
    assert "T32" not in text


def test_shared_elements_are_reported():
    both = np.stack(np.indices((8, 16)), axis=-1).transpose(1, 0, 2).reshape(-1, 1, 2)[:64]
    both = np.concatenate([both[:32], both[:32]])  # two warps hold the same elements
    text = labels(draw.tv_layout(both, (8, 4)))
    assert "Up to 2 threads hold the same element" in " ".join(text)
    assert "T1 V0" in text


def test_cells_without_a_thread_are_blank():
    picture = draw.tv_layout(np.array([[[0, 0]], [[1, 1]], [[-1, -1]]]), (2, 2))
    assert sum(t in {"T0 V0", "T1 V0", "T2 V0"} for t in labels(picture)) == 2 + 1  # and the legend
    assert "no thread" in labels(picture)


def test_a_table_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"expected \[threads, values, 2\]"):
        draw.tv_layout(np.zeros((4, 2)), (4, 4))


def test_a_shared_layout_shows_offsets_and_banks():
    layout = Layout((8, 64), (64, 1), Swizzle(3, 3, 3))
    text = labels(draw.shared_layout(layout, (8, 64), 16))
    for row, chunk in product(range(8), range(8)):
        offset = layout(row, 8 * chunk)
        assert f"{offset} b{offset * 2 // 4 % 32}" in text
    plain = labels(draw.shared_layout(layout.affine, (8, 64), 16))
    assert "64 b0" in plain
    assert "72 b4" in plain


def test_a_padded_layout_has_no_vectors_where_it_has_none():
    text = labels(draw.shared_layout(Layout((4, 4), (5, 1)), (4, 4), 32))
    assert "5 b5" in text
    assert "1 b1" in text


def bounds(m, n, k, arch="sm_90a", dtype="float16"):
    problem = from_sizes("TN", m=m, n=n, k=k, dtype=dtype)
    return performance(problem, Launch(1, 128, 0), arch, [])


PREDICTION = Prediction(
    182e-6,
    {"tensor cores": 158e-6, "waiting": 87e-6, "L2": 0.0, "DRAM": 48e-6, "launch overhead": 3e-6},
    512, 1, 4, 1.0,
)  # fmt: skip

MANY = [
    draw.request(*REQUESTS["distant"], "a"), draw.request(*REQUESTS["far"], "a"),
    draw.request(*REQUESTS["halves"], "a title " * 40), draw.banks(*SHARED["pitch"], "b"),
    draw.banks(*SHARED["bytes"], "b"),
    draw.tv_layout(table(column_major(16, 8), column_major(8, 1)).partition, (128, 8), "c" * 300),
    draw.shared_layout(Layout((128, 32), (1, 128), Swizzle(3, 3, 4)), (128, 32), 16),
    times.roofline(bounds(4096, 4096, 4096), 182e-6), times.roofline(bounds(4096, 4096, 4096)),
    times.roofline(bounds(8, 8, 8), 5.0),
    times.roofline(bounds(2**27, 2**27, 2**27, "sm_80", "float64"), 1e12),
    times.predicted_terms(PREDICTION),
    times.predicted_terms(PREDICTION.with_auxiliary({"packing": 1.0, "reduction": 1e-9})),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(MANY)))
def test_labels_are_legible_and_inside_the_picture(index):
    root = parse(MANY[index])
    width, height = float(root.get("width")), float(root.get("height"))
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    taken = []
    for x, y, text, anchor, size in places(MANY[index]):
        assert size >= 10
        wide = len(text) * size * 0.5  # less than the width in any of the fonts
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        assert left >= 0 and left + wide <= width, text
        assert size * 0.7 <= y <= height, text
        taken.append((left, y, left + wide, text))
    for n, (left, y, right, text) in enumerate(taken):
        for left2, y2, right2, text2 in taken[n + 1 :]:
            apart = right <= left2 or right2 <= left or abs(y - y2) >= 9
            assert apart, (text, text2)


@pytest.mark.parametrize("index", range(len(MANY)))
def test_pictures_have_no_ids_and_name_nothing_outside(index):
    root = parse(MANY[index])
    assert not [e for e in root.iter() if "id" in e.attrib or "href" in e.attrib]
    assert re.findall(r"https?:[^\"]*", MANY[index]) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in MANY[index]
    background = next(e for e in root if e.tag.endswith("}rect"))
    assert (background.get("width"), background.get("fill")) == ("100%", "#ffffff")


def test_hostile_titles_are_escaped():
    title = '</svg><script>alert("&")</script>'
    for picture in (
        draw.request(*REQUESTS["floats"], title),
        draw.banks(*SHARED["row"], title),
        draw.tv_layout(np.zeros((1, 1, 2), int), (1, 1), title),
        draw.shared_layout(Layout((4, 4), (4, 1)), (4, 4), 32, title),
    ):
        assert parse(picture).get("aria-label") == title
        assert title in labels(picture)
        assert "<script" not in picture


def test_pictures_are_the_same_each_time():
    assert draw.request(*REQUESTS["far"], "a") == MANY[1]
    assert draw.banks(*SHARED["pitch"], "b") == MANY[3]


def centres(picture):
    """Return the first word of the tooltip of each square, and its center in the plot."""
    found = {}
    for e in parse(picture).iter():
        tip = e.find("{http://www.w3.org/2000/svg}title")
        if tip is not None:
            x, y, wide, high = (float(e.get(key)) for key in ("x", "y", "width", "height"))
            found[tip.text.split()[0]] = (x + wide / 2, y + high / 2)
    return found


def test_a_roofline_shows_intensities_at_the_predicted_speed():
    problem = from_sizes("TN", m=4096, n=4096, k=4096, dtype="float16")
    access = GlobalAccess(
        "A", "load", "cp.async", 128, problem.A, (128, 32), columns((128, 32), 1) * 0, 1, 8
    )
    here = performance(problem, Launch(1, 128, 0), "sm_90a", [make_row(access)])
    picture = times.roofline(here, 182e-6)
    assert f"{here.flops / 182e-6 / 1e12:.0f} predicted" in " ".join(labels(picture))
    assert {"compulsory: 1,365 per byte", "ridge 295"} <= {*labels(picture)}
    at = centres(picture)
    assert set(at) == {"compulsory", "requested"}
    assert at["compulsory"][1] == at["requested"][1]  # the same speed
    # The axis is logarithmic: its numbers determine a decade.
    ticks = {
        float(text.replace(",", "")): x
        for x, y, text, anchor, _ in places(picture)
        if anchor == "middle" and re.fullmatch(r"[\d,.]+", text)
    }
    (low, left), (high, right) = min(ticks.items()), max(ticks.items())
    decade = (right - left) / (math.log10(high) - math.log10(low))
    between = math.log10(here.intensity / here.requested_intensity) * decade
    assert at["compulsory"][0] - at["requested"][0] == pytest.approx(between, abs=0.05)


def test_a_roofline_wants_a_peak_rate():
    with pytest.raises(ValueError, match="bounds has no roofline"):
        times.roofline(SimpleNamespace(roofline=None, gpu=None))


def test_the_terms_of_a_prediction_are_bars_the_longest_first():
    bars = [
        (float(e.get("width")), e.find("{http://www.w3.org/2000/svg}title").text)
        for e in parse(times.predicted_terms(PREDICTION)).iter("{http://www.w3.org/2000/svg}rect")
        if len(e)
    ]
    assert [tip for _, tip in bars] == [
        "tensor cores: 158 us", "waiting: 87 us", "DRAM: 48 us", "launch overhead: 3 us",
    ]  # fmt: skip
    assert bars[0][0] / bars[1][0] == pytest.approx(158 / 87, rel=0.01)
    assert "182 us predicted" in labels(times.predicted_terms(PREDICTION))


# ---- accesses -----------------------------------------------------------------------------------


def an_access(shape, stride, tile, bits, coords, axis, alignment=256, **more):
    matrix = Matrix("A", shape, stride, "float16", alignment)
    return GlobalAccess("A", "load", "cp.async", bits, matrix, tile, coords, axis, 1, **more)


def columns(tile, step):
    """Return requests of 32 lanes along mode 0, with ``step`` elements each."""
    i, j = np.meshgrid(np.arange(0, tile[0], step), np.arange(tile[1]), indexing="ij")
    return np.stack([i, j], axis=-1).transpose(1, 0, 2).reshape(-1, 32, 2)


@pytest.mark.parametrize("alignment", [256, 16, 2])
def test_the_worst_request_is_the_models(alignment):
    # ld of 192 bytes: half of the columns begin in the middle of a line, all on a sector
    access = an_access((64, 64), (1, 96), (64, 64), 16, columns((64, 64), 1), 0, alignment)
    which, starts, lengths = draw.worst_request(access)
    found = gmem.analyze(access).worst
    base = gmem.base_residue(access.matrix)
    assert int(gmem.covered(starts + base, lengths, 32)) == found.sectors
    assert starts[0] == access.coords[which, 0] @ (1, 96) * 2


def test_the_worst_request_is_not_the_first():
    coords = columns((64, 2), 1)
    coords[3] = np.stack([np.zeros(32, int), np.arange(32)], axis=-1) % (64, 2)
    coords[3, :, 1] = np.arange(32)  # one request is across the columns
    access = an_access((64, 64), (1, 64), (64, 64), 16, coords, 0)
    assert draw.worst_request(access)[0] == 3
    assert "request #3 of 4" in draw.access_picture(access)


def test_lanes_beyond_the_matrix_take_no_part():
    access = an_access((20, 2), (1, 64), (64, 2), 16, columns((64, 2), 1), 0)
    _, starts, lengths = draw.worst_request(access)
    assert ((lengths > 0) == (np.arange(32) < 20)).all()
    assert (starts[20:] == -1).all()
    nothing = an_access((0, 2), (1, 64), (64, 2), 16, columns((64, 2), 1), 0)
    assert draw.worst_request(nothing) is None
    assert draw.access_picture(nothing) is None


@pytest.mark.parametrize(
    ("tail", "want"), [("cut", [16, 16, 8]), ("whole", [16, 16, 16]), ("full", [16, 16, 0])]
)
def test_what_becomes_of_a_vector_that_straddles(tail, want):
    access = an_access((20, 1), (1, 64), (256, 1), 128, columns((256, 1), 8), 0, tail=tail)
    _, _, lengths = draw.worst_request(access)
    assert lengths[:3].tolist() == want
    assert not lengths[3:].any()


def test_elements_of_straddling_vectors_are_requests_of_their_own():
    # Rows of 84 elements in tiles of 64: the vector at 80 straddles the end, in the second tile.
    coords = np.full((1, 32, 2), -1)
    coords[0, :8, 0] = np.arange(0, 64, 8)
    coords[0, :8, 1] = 0
    access = an_access((84, 4), (1, 96), (64, 4), 16, coords, 0, tail="elements", width=8)
    which, starts, lengths = draw.worst_request(access)
    assert (starts[lengths > 0].tolist(), lengths[lengths > 0].tolist()) == ([160 + 2 * which], [2])
    assert which < 4
    whole = an_access((64, 4), (1, 96), (64, 4), 16, coords, 0, tail="elements", width=8)
    assert draw.worst_request(whole) is None


def test_a_region_begins_at_its_origin():
    access = an_access(
        (64, 64), (1, 64), (32, 1), 16, columns((32, 1), 1), 0, origin=(32, 8), extents=(32, 56)
    )
    assert draw.worst_request(access)[1][0] == (32 + 8 * 64) * 2


def test_the_worst_banks_are_the_models():
    offsets = np.stack([LANES * 4, LANES * 8, np.full(32, -1), LANES * 64])
    access = SharedAccess("A", "store", "st.shared", 32, offsets)
    which, chosen = draw.worst_banks(access)
    assert which == 3
    assert (chosen == offsets[3]).all()
    assert "request #3 of 4" in draw.access_picture(access)
    off = SharedAccess("A", "store", "st.shared", 32, offsets[2:3])
    assert draw.worst_banks(off) is None
    assert draw.access_picture(off) is None


def test_titles_say_what_an_access_is():
    access = SharedAccess("B", "load", "ldmatrix.x4", 128, LANES[None] * 16, part="last k-tile")
    title = "B: ldmatrix.x4 of 128 bits, load from shared memory (last k-tile)"
    assert draw.access_title(access) == title
    assert f"{title}, request #0 of 1" in labels(draw.access_picture(access))
    assert "mine, request #0 of 1" in labels(draw.access_picture(access, "mine"))
    tma = TmaAccess("A", "load", Matrix("A", (8, 8), (1, 8), "float16", 256), (64, 32), 1)
    assert draw.access_title(tma) == "A: TMA load of boxes of 64x32"
    assert draw.access_picture(tma) is None


def test_spans():
    assert draw.spans([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert draw.spans([]) == ""
