"""Test that the advice of error messages works: random invalid calls are changed accordingly.

``fixes`` parses a message as a user would. A call that follows the advice must be accepted, or fail
for another reason. Following the advice repeatedly must lead to an accepted call.
"""

import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import cute_gemm as cg
from cute_gemm.arch import Arch
from cute_gemm.errors import GemmError
from cute_gemm.kernels import registry
from cute_gemm.plan.backend import arch_without_backend
from cute_gemm.run import driver

Call = dict[str, Any]

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a")
NAMES = (
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
TYPES: tuple[Call, ...] = (
    *({"dtype": name} for name in NAMES),
    *({"dtype": "float32", "compute": name} for name in ("tf32", "bf16x9", "bf16x6")),
)
PARTS: tuple[Call, ...] = (
    {"scale_a": "1x128", "scale_b": "128x128"}, {"scale_a": "1x128"}, {"scale_b": "row"},
    {"scale_a": "tensor"}, {"epilogue": "bias"}, {"epilogue": "gelu"}, {"epilogue": "swiglu"},
    {"ragged": "M", "l": 3}, {"ragged": "N", "l": 3}, {"ragged": "K", "l": 3}, {"l": 3},
    {"batch_invariant": True}, {"pack": "A"}, {"pack": "B"}, {"pack": "AB"}, {"pack": "none"},
    {"split_k": 3}, {"compute": "fast_accum"}, {"base_offset": 1}, {"out_dtype": "float32"},
    {"order": "C"}, {"storage": "C"}, {},
)  # fmt: skip
VALUES: dict[str, tuple[Any, ...]] = {
    "tile": (
        (128, 128, 32), (256, 256, 64), (16, 16, 16), (64, 256, 128), (512, 512, 64), (8, 8, 1),
    ),
    "thread_tile": ((8, 8), (32, 32), (1, 1)), "stages": (1, 3, 9, 40), "min_ctas": (0, 1, 4, 16),
    "warps": ((2, 2), (8, 8), 4, 64), "copy": ("mn_major", "k_major"),
}  # fmt: skip


def draw(rng: random.Random) -> tuple[str, Call]:
    """Return an op and arguments of a random call, most of them invalid."""
    kernel = rng.choice(("auto", *registry.names()))
    call: Call = {"kernel": kernel, "arch": rng.choice(ARCHS), "backend": "cpu"}
    call |= {mode: rng.choice((1, 3, 64, 256, 257, 1024, 4096)) for mode in "mnk"}
    call |= rng.choice(TYPES)
    for part in rng.choices(PARTS, k=rng.choice((1, 1, 2))):
        call |= part
    if rng.random() < 0.4:
        known = registry.options() if rng.random() < 0.1 else ()
        names = tuple(known) or (registry.get(kernel).options if kernel != "auto" else ("tile",))
        for option in rng.choices(names, k=1) if names else ():
            call[option] = rng.choice(VALUES.get(option, (1, "nothing", (2, 1))))
    return rng.choice(("NN", "NT", "TN", "TT")), call


def refused(op: str, call: Call) -> str:
    """Return the error message of a call, or ``""``."""
    return _refused(op, tuple(call.items()))


@cache
def _refused(op: str, call: tuple[tuple[str, Any], ...]) -> str:
    try:
        cg.plan(op, **dict(call))
    except GemmError as error:
        return str(error)
    return ""


#: Messages about ranges of sizes and shapes, which no argument can fix.
FACTS = re.compile(
    r"power of two|expected an even n|is 2147483653|must be|that has wgmma|no config for these"
    r"|kernel 'sm90_wgmma' needs sm_90a; arch is '[^']*'$|does not have: return the product"
    r"|of which epilogue 'swiglu' takes pairs|thread is of|for whose sums ptxas does not wait"
    r"|expected real floating-point types"
)


def without(call: Call, *names: str) -> Call:
    return {name: value for name, value in call.items() if name not in names}


def smaller(call: Call, name: str, factor: float) -> Iterator[Call]:
    """Yield calls with some extents of an option halved or doubled, up to six times."""
    value = call.get(name)
    if not isinstance(value, tuple):
        value = (value,) if isinstance(value, int) else ()
    for times in range(1, 7):
        for which in range(1, 2 ** len(value)):
            changed = tuple(
                max(1, int(x * factor**times)) if which >> place & 1 else x
                for place, x in enumerate(value)
            )
            yield call | {name: changed if isinstance(call[name], tuple) else changed[0]}


def fixes(said: str, call: Call) -> list[list[Call]]:
    """Return the calls that a message advises. One call of each list must be accepted."""
    found: list[list[Call]] = []
    for kernel in re.findall(r"(?:take|use|or|;) kernel=['\"](\w+)['\"]", said):
        found.append([call | {"kernel": kernel}])
    if names := re.search(r"name a kernel that has: ([\w, ]+)", said):
        found += [[call | {"kernel": kernel}] for kernel in names[1].split(", ")]
    if match := re.search(r"batch_invariant=True .*expected 'auto' or one of ([\w, ]+)", said):
        found += [[call | {"kernel": name}] for name in ("auto", *match[1].split(", "))]
    if match := re.search(r"pack='(\w+)' or 'AB'", said):  # A alone, if B has the required layout
        found += [[call | {"pack": match[1]}, call | {"pack": "AB"}], [call | {"pack": "AB"}]]
    if match := re.match(r"kernel '\w+' needs (sm_\d+a?)", said):
        found.append([call | {"arch": match[1]}])
    if match := re.search(r"does not take .*expected one of (.*)", said):
        for spelled in match[1].split(", ")[:7]:
            name, _, compute = spelled.partition("/")
            other = {"dtype": name, "compute": compute or None}
            found.append([without(call, "out_dtype") | other])
    if "or row scales" in said:
        found.append([call | {x: "row" for x in ("scale_a", "scale_b") if call.get(x)}])
    if "for which the only kernel" in said:
        also = {"kernel": "auto"} if "and kernel='auto'" in said else {}
        for name in re.findall(r"compute='(float32|tf32)'", said):
            found.append([call | {"compute": name} | also])
        for kind in ("tensor", "row") if "tensor scales or row scales" in said else ():
            scales = {name: kind for name in ("scale_a", "scale_b") if call.get(name)}
            found.append([call | scales | also])
    if "leave it out, or pass 'tf32'" in said:
        found += [[call | {"compute": "tf32"}], [without(call, "compute")]]
    elif match := re.match(r"(?:option )?(\w+)=.* came with .*leave it out", said):
        found.append([without(call, match[1])])
    if match := re.search(r"none of which has the option '(\w+)'; leave it out", said):
        found.append([without(call, match[1])])
    if "options pack and split_k are for" in said:
        assert {"pack", "split_k"} & set(call), said
        found.append([without(call, "pack", "split_k")])
    if "leave one of the two out" in said:
        names = "compute", "scale_a", "scale_b", "kernel", "backend"
        pair = [name for name in names if call.get(name) and name in said]
        found.append([without(call, name) for name in pair])
        if "blocks" in said:
            found[-1] = [without(call, "scale_a", "scale_b"), without(call, "compute")]
    if "takes no slices of K" in said:
        found.append([without(call, "split_k")])
    if match := re.search(r"pass out_dtype='(\w+)'", said):
        found.append([call | {"out_dtype": match[1]}])
    if match := re.search(r"k up to (\d+) fits with tile", said):
        found.append([call | {"k": int(match[1])}])
    if match := re.search(r"take tile=\((\d+), (\d+), (\d+)\)", said):
        found.append([call | {"tile": tuple(map(int, match.groups()))}])
    if match := re.match(r"option '(\w+)' is not one of kernel '\w+'; expected", said):
        found.append([without(call, match[1])])
    if match := re.match(r"option (\w+)=.* is unknown; expected one of \(?([\w', .]+)\)?$", said):
        words = match[2].replace("'", "").split(", ")
        found += [[call | {match[1]: word}] for word in words]
    if match := re.search(r"option (\w+)=.* is out of range; expected (\d+) to (\d+)", said):
        found += [[call | {match[1]: int(end)}] for end in match.groups()[1:]]
    for words, option, factor in (
        ("smaller tile", "tile", 0.5), ("larger tile", "tile", 2), ("fewer stages", "stages", 0.5),
        ("fewer warps", "warps", 0.5), ("more warps", "warps", 2), ("or min_ctas", "min_ctas", 0.5),
        ("smaller thread_tile", "thread_tile", 0.5),
        ("take a smaller one", "min_ctas", 0.5),
    ):  # fmt: skip
        if words in said and option in call:
            found.append(list(smaller(call, option, factor)))
    if found and re.search(r"smaller|fewer|larger", said):  # one or the other
        found = [[each for calls in found for each in calls]]
    return found


#: Messages that say that the advised kernel or GPU does not support the problem.
LACKS = re.compile(
    r"needs sm_|does not take|takes no grouped|computes alpha A B|for which the only kernel is"
    r"|computes no products|takes only tensor scales"
)


def check_fixes(op: str, call: Call, said: str) -> Call | None:
    """Follow each advice. Return the first call that is accepted or fails for another reason."""
    advised = fixes(said, call)
    if not advised:
        assert FACTS.search(said) or re.search(r"expected|option", said), said
        assert not re.search(r"\b(take|use|leave|pack it|pass)\b", said), f"not known: {said}"
        return None
    onward: Call | None = None
    for calls in advised:
        outcomes = [(each, refused(op, each)) for each in calls]
        if LACKS.search(said):  # the message is about the kernel, and another one is next
            good = [each for each, again in outcomes if not LACKS.search(again)]
        else:
            good = [each for each, again in outcomes if again != said]
        assert good, f"{op} {call}\n  {said}\n  " + "\n  ".join(again for _, again in outcomes[:4])
        onward = onward or min(good, key=lambda each: bool(refused(op, each)))
    return onward


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore:no usable GPU")
def test_advice_is_accepted(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        op, call = draw(rng)
        path: list[str] = []
        onward: Call | None = call
        while onward is not None and (said := refused(op, onward)):
            path.append(said)
            assert len(path) < 7, f"{op} {call}\n  " + "\n  ".join(path)
            onward = check_fixes(op, onward, said)


GPUS = ("A100", "RTX 3090", "RTX 4090", "B200", "RTX 5090", "H200")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("kernel", ["auto", "sm80_pipeline", "thin", "sm90_wgmma"])
def test_scales_of_blocks_on_every_gpu(gpu: str, kernel: str) -> None:
    """Test that every GPU has a kernel for block scales, which other kernels' messages advise."""
    sizes: Call = {"m": 256, "n": 256, "k": 512, "dtype": "float8_e4m3fn", "backend": "cpu"}
    call = sizes | {"scale_a": "1x128", "scale_b": "128x128", "gpu": gpu, "kernel": kernel}
    said = refused("TN", call)
    lacks = {"auto": (), "sm80_pipeline": ("A100", "RTX 3090"), "sm90_wgmma": {*GPUS} - {"H200"}}
    assert bool(said) == (gpu in lacks.get(kernel, GPUS))
    if said:
        (instead,) = re.findall(r"take kernel='(\w+)'", said)
        assert refused("TN", call | {"kernel": instead}) == ""


@pytest.mark.parametrize("device", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_the_cpu_computes_what_the_gpu_of_the_machine_has_no_kernel_for(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: Call = {"m": 64, "n": 64, "k": 256, "backend": "cpu"}
    scaled = cg.plan("TN", **words, arch="sm_90a", dtype="float8_e4m3fn", scale_a="1x128").problem
    parts = cg.plan("TN", **words, arch="sm_90a", dtype="float32", compute="bf16x9").problem
    plain = cg.plan("TN", **words, arch="sm_80", dtype="float32").problem
    monkeypatch.setattr(driver, "why_no_gpu", lambda: None)
    monkeypatch.setattr(driver, "device_arch", lambda *_: Arch(device))
    assert arch_without_backend("auto", plain) == arch_without_backend("auto", scaled) == device
    for problem, kernel in ((scaled, "sm90_wgmma"), (parts, "auto"), (parts, "sm90_wgmma")):
        assert arch_without_backend(kernel, problem) == "sm_90a"
