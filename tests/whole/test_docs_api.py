"""Test that the page of the Python API has every public name, as its generator resolves it."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import cute_gemm as cg
import cute_gemm.jax
import cute_gemm.torch
from cute_gemm.measure.bench import bench
from cute_gemm.problem.verify import verify

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")


def resolved(dotted: str) -> Any:
    """Return the object of a dotted name, where modules take precedence over imported names."""
    module, _, rest = dotted, "", ""
    while True:
        try:
            found = import_module(module)
            break
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            rest = f"{name}.{rest}".rstrip(".")
    for name in filter(None, rest.split(".")):
        found = getattr(found, name)
    return found


def documented() -> dict[str, Any]:
    """Return the objects on the page, by heading or by last name."""
    found = {}
    for match in re.finditer(r"^::: (\S+)\n((?:    .*\n)*)", PAGE, re.MULTILINE):
        identifier, options = match.groups()
        members = re.search(r"members: \[(.*)\]", options)
        module = resolved(identifier)
        for name in members[1].split(", ") if members else getattr(module, "__all__", ()):
            found.setdefault(name, resolved(f"{identifier}.{name}"))
        heading = re.search(r"\bheading: ([\w.]+)", options)
        name = (heading[1] if heading else identifier).rpartition(".")[2]
        found[name] = module
    return found


@pytest.mark.parametrize("name", sorted({*cg.__all__} - {"GemmError"}))
def test_every_public_name_is_on_the_page(name: str) -> None:
    """Test names. ``cute_gemm.plan`` is a function, but also a module for the page's generator."""
    assert documented()[name] is getattr(cg, name)


def test_errors_are_on_the_page() -> None:
    assert documented()["errors"].GemmError is cg.GemmError


@pytest.mark.parametrize("name", sorted(documented()))
def test_examples_have_a_section(name: str) -> None:
    """Test headings of examples, without which they are rendered as quotations."""
    text = documented()[name].__doc__ or ""
    assert ">>>" not in text or re.search(r"Examples\n *-{8}\n", text)


#: `analyze` passes its keywords to `plan`, which describes them.
FUNCTIONS = (
    cg.gemm, cg.grouped_gemm, cg.plan, cg.analyze_copy, cg.compile, cg.epilogue, cg.Plan.__call__,
    cg.Plan.report, cg.Plan.candidates, cg.Plan.pack, cg.Plan.bind, cg.Plan.trace,
    cute_gemm.jax.gemm, cute_gemm.jax.linear, cute_gemm.jax.matmul, cute_gemm.torch.linear,
    cute_gemm.torch.matmul, cute_gemm.torch.mlp, cute_gemm.torch.grouped_mm,
    cute_gemm.torch.Linear, bench, verify,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__qualname__)
def test_every_parameter_is_described(function: Any) -> None:
    section = inspect.cleandoc(function.__doc__).split("Parameters\n----------\n")[1]
    lines = re.findall(r"^\S.*$", section, re.MULTILINE)
    described = {name.lstrip("*") for line in lines for name in line.split(", ")}
    assert set(inspect.signature(function).parameters) - {"self"} <= described


def test_docstrings_are_plain_markdown() -> None:
    """Test that docstrings have no Sphinx roles, which would be rendered as text."""
    for path in sorted((ROOT / "cute_gemm").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r":\w+:`[^`]*`", text), path
