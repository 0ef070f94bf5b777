"""Test tensors that are not plain memory, side effects of calls, and saved programs."""

import copy
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

import cute_gemm as cg
import cute_gemm.torch as ct
from cute_gemm.arrays import host_array, read
from cute_gemm.errors import ArrayError, DeviceError, DTypeError, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore:no usable GPU")

ENDS = torch.tensor([2, 6], dtype=torch.int32)


@cg.epilogue
def several(acc: Any, bias: Any) -> Any:
    y = acc + bias
    return y, cg.amax(y), cg.cast(y, "int8")


Make = Callable[..., Any]
#: Calls as functions of a factory of tensors, and the operations of their products.
CALLS: dict[str, tuple[Callable[[Make], Any], int]] = {
    "gemm": (lambda make: cg.gemm("NT", make(6, 4), make(5, 4)), 240),
    "rows": (lambda make: cg.gemm("TN", make(4, 6), make(4, 5), order="C"), 240),
    "type": (lambda make: cg.gemm("NT", make(6, 4).half(), make(5, 4).half(),
                                  out_dtype="float32"), 240),
    "int8": (lambda make: cg.gemm("NN", make(6, 4).to(torch.int8), make(4, 5).to(torch.int8)), 240),
    "alpha": (lambda make: cg.gemm("NT", make(6, 4), make(5, 4), alpha=torch.tensor(2.0)), 240),
    "name": (lambda make: cg.gemm("NT", make(6, 4), make(5, 4), epilogue="bias+relu",
                                  bias=make(5)), 240),
    "pairs": (lambda make: cg.gemm("NT", make(6, 4), make(8, 4), epilogue="swiglu"), 384),
    "several": (lambda make: cg.gemm("NT", make(6, 4), make(5, 4), epilogue=several,
                                     bias=make(5)), 240),
    "batch": (lambda make: cg.gemm("NT", make(3, 6, 4), make(5, 4)), 720),
    "matmul": (lambda make: ct.matmul(make(2, 6, 4), make(4, 5)), 480),
    "linear": (lambda make: ct.linear(make(6, 4), make(5, 4), make(5), "gelu"), 240),
    "invariant": (lambda make: ct.linear(make(2, 3, 4), make(5, 4), batch_invariant=True), 240),
    "mlp": (lambda make: ct.mlp(make(6, 4), make(5, 4), make(5), make(3, 5), None, "gelu"), 420),
    "grouped": (lambda make: ct.grouped_mm(
        x := make(6, 4), make(2, 4, 5), ENDS.to(x.device), make(5)), 240),
    "grouped K": (lambda make: ct.grouped_mm(
        x := make(4, 6), make(6, 5), ENDS.to(x.device)), 240),
}  # fmt: skip


def described(result: Any) -> list[Any]:
    every = result if isinstance(result, tuple) else (result,)
    return [(x.shape, x.stride(), x.dtype) for x in every]


def maker(grad: bool, **where: Any) -> Make:
    return lambda *shape: torch.randn(shape, requires_grad=grad, **where)


# ---- shapes without data -------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_meta_and_fake_tensors_have_the_shapes_of_results(name: str, grad: bool) -> None:
    call, _ = CALLS[name]
    expected = described(call(maker(grad)))
    found = call(maker(grad, device="meta"))
    assert described(found) == expected
    assert all(x.is_meta for x in (found if isinstance(found, tuple) else (found,)))
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = call(maker(grad))
    assert described(found) == expected
    if name != "several":
        assert isinstance(found, FakeTensor)


def test_a_layer_on_the_meta_device_has_gradients() -> None:
    layer = ct.Linear(4, 5, activation="silu", device="meta")
    layer(torch.randn(2, 3, 4, device="meta")).sum().backward()
    assert layer.weight.grad.is_meta and layer.weight.grad.shape == (5, 4)
    C = torch.empty(6, 5, device="meta")
    A, B = torch.empty(6, 4, device="meta"), torch.empty(5, 4, device="meta")
    assert cg.gemm("NT", A, B, C, beta=1) is C


def test_meta_tensors_are_checked_as_others_are() -> None:
    make, meta = maker(False), maker(False, device="meta")
    for error, said, call in (
        (ShapeError, "makes k = 4", lambda: cg.gemm("NN", meta(2, 4), meta(3, 4))),
        (ShapeError, "makes k = 4", lambda: cg.gemm("NN", maker(True, device="meta")(2, 4),
                                                    meta(3, 4))),
        (DeviceError, "B is on the host", lambda: cg.gemm("NT", meta(2, 4), make(3, 4))),
        (DeviceError, "B is on the meta device", lambda: ct.linear(make(2, 4), meta(3, 4))),
        (DeviceError, "bias is on the host .* A is on the meta device",
         lambda: cg.gemm("NT", meta(2, 4), meta(3, 4), epilogue="bias", bias=make(3))),
        (DeviceError, "A is on the meta device .* the plan is for the CPU",
         lambda: cg.plan("NT", make(2, 4), make(3, 4))(meta(2, 4), meta(3, 4))),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            call()


@pytest.mark.parametrize("name", CALLS)
def test_flops_are_counted(name: str) -> None:
    call, flops = CALLS[name]
    for grad in (False, True):
        with FlopCounterMode(display=False) as counter:
            found = call(maker(grad))
            if grad and isinstance(found, torch.Tensor) and found.requires_grad:
                found.sum().backward()  # two products for each
                flops *= 3
        assert counter.get_total_flops() == flops


def test_flops_of_calls_in_place() -> None:
    make = maker(False)
    A, B, C, D = make(6, 4), make(4, 5), make(6, 5), make(6, 5)
    with FlopCounterMode(display=False) as counter:
        assert cg.gemm("NN", A, B, C) is C
        cg.grouped_gemm("NN", A, make(2, 4, 5), ENDS)  # runs without an operator
    torch.testing.assert_close(C, A @ B)
    assert counter.get_total_flops() == 240
    with FlopCounterMode(display=False):
        bias = cg.gemm("NN", A, B, epilogue="bias", bias=D[0].numpy())
    torch.testing.assert_close(bias, A @ B + D[0])


# ---- other kinds of tensors ----------------------------------------------------------------------


def _odd() -> dict[str, tuple[Any, type[Exception], str]]:
    x = torch.randn(4, 4)
    freed = torch.randn(4, 4)
    freed.untyped_storage().resize_(0)
    return {
        "sparse": (x.to_sparse(), ArrayError, r"layout torch.sparse_coo; .*\.to_dense\(\)"),
        "compressed": (x.to_sparse_csr(), ArrayError, r"layout torch.sparse_csr; .*\.to_dense\(\)"),
        "nested": (torch.nested.nested_tensor([x, x]), ArrayError, "is a nested tensor; expected"),
        "jagged": (
            torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged), ArrayError,
            "is a nested tensor; expected",
        ),
        "quantized": (torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), DTypeError, "qint8"),
        "without memory": (freed, ArrayError, "storage that was freed"),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("kind", _odd())
def test_odd_tensors_are_one_sentence(kind: str) -> None:
    x, error, said = _odd()[kind]
    w, grad = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    for call in (
        lambda: cg.gemm("NN", x, w),
        lambda: cg.gemm("NN", w, x),
        lambda: cg.gemm("NN", w, w, x, beta=1),
        lambda: cg.plan("NN", x, w),
        lambda: ct.matmul(x, w),
        lambda: ct.linear(x, w),
        lambda: ct.mlp(x, w, None, w, None, "relu"),
        lambda: ct.grouped_mm(x, torch.randn(2, 4, 4), ENDS),
        *([lambda: cg.gemm("NN", x, grad)] if kind != "without memory" else []),
    ):
        with pytest.raises(error, match=said):
            call()


def test_subclasses() -> None:
    class Own(torch.Tensor):
        pass

    x, w = torch.randn(3, 4), torch.randn(4, 5)
    own = x.as_subclass(Own)
    assert type(ct.matmul(own, w)) is Own and type(ct.linear(own, w.T)) is Own
    torch.testing.assert_close(cg.gemm("NN", own, w), x @ w)
    both = TwoTensor(x, 2 * x)
    for found in (cg.gemm("NN", both, w), ct.matmul(both, w), ct.linear(both, w.T.contiguous())):
        assert isinstance(found, TwoTensor)
        torch.testing.assert_close(found.b, 2 * x @ w)
    both = TwoTensor(x, 2 * x).requires_grad_()
    ct.linear(both, w.T.contiguous(), None, "relu").sum().backward()
    assert isinstance(both.grad, TwoTensor)


# ---- side effects on arguments -------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CALLS, "into", "plan", "grouped_gemm", "interpreter"])
def test_storage_can_be_resized_after_a_call(name: str) -> None:
    made: list[Any] = []

    def make(*shape: int) -> Any:
        made.append(torch.randn(shape))
        return made[-1]

    if name == "into":
        found = cg.gemm("NT", make(6, 4), make(5, 4), make(6, 5), beta=1)
    elif name == "plan":
        A, B = make(6, 4), make(4, 5)
        found = cg.plan("NN", A, B)(A, B)
    elif name == "grouped_gemm":
        found = cg.grouped_gemm("NN", make(6, 4), make(2, 4, 5), ENDS)
    elif name == "interpreter":
        found = cg.gemm("NN", make(6, 4), make(4, 5), backend="interpreter", kernel="naive")
    else:
        found = CALLS[name][0](make)
    for x in (*made, *(found if isinstance(found, tuple) else (found,))):
        x.untyped_storage().resize_(0)


@pytest.mark.parametrize(
    "name",
    ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8", "int32",
     "float8_e4m3fn", "float8_e5m2"],
)  # fmt: skip
def test_host_arrays_are_the_memory_of_tensors(name: str) -> None:
    kind = getattr(torch, name)
    wide = torch.complex128 if kind.is_complex else torch.float64
    views: list[Callable[[Any], Any]] = [
        lambda x: x, lambda x: x.T, lambda x: x[1:, 1:], lambda x: x[:0], lambda x: x[:, :0],
    ]  # fmt: skip
    for view in views:
        x = (torch.arange(12).reshape(3, 4) % 3).to(kind)
        y = view(x)
        array = host_array(read(y, "y"))
        assert array.dtype.name == name and array.shape == tuple(y.shape)
        assert array.astype(str(wide)[6:]).tolist() == y.to(wide).tolist()
        if array.size:
            array[0, 0] = 2
            assert y[0, 0].to(wide) == 2
        x.untyped_storage().resize_(0)


def test_host_arrays_keep_their_tensors() -> None:
    array = host_array(read(torch.full((1000, 100), 7.0), "x"))
    torch.zeros(1000, 100)
    assert (array == 7).all()


# ---- copied and saved layers ---------------------------------------------------------------------


def test_layers_are_copied_and_saved() -> None:
    layer, x = ct.Linear(4, 5, activation="gelu_tanh", batch_invariant=True), torch.randn(2, 4)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(file, weights_only=False),
    ):
        assert (other.activation, other.batch_invariant) == ("gelu_tanh", True)
        assert torch.equal(other(x), layer(x))
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(layer)(x), layer(x))


# ---- saved programs -----------------------------------------------------------------------------


def scaled(factor: float) -> Any:
    @cg.epilogue
    def own(acc: Any, bias: Any) -> Any:
        return cg.where(acc > 0, acc * factor + bias, -float("inf"))

    return own


class Model(torch.nn.Module):
    def __init__(self, epilogue: Any) -> None:
        super().__init__()
        self.layer, self.epilogue = ct.Linear(4, 6, activation="gelu"), epilogue

    def forward(self, x: Any, w: Any, b: Any) -> Any:
        y = self.layer(x)
        own = cg.gemm("NT", y, w, epilogue=self.epilogue, bias=b, order="C")
        return own, ct.matmul(y, w.T), cg.gemm("NT", y, w, epilogue="bias+relu", bias=b)


LOAD = """
import sys, warnings
import torch
import cute_gemm.torch
warnings.simplefilter("ignore")
*given, expected = torch.load(sys.argv[2])
for found, each in zip(torch.export.load(sys.argv[1]).module()(*given), expected, strict=True):
    assert torch.equal(found, each)
"""


def test_a_saved_program_loads_in_another_process(tmp_path: Path) -> None:
    model = Model(scaled(0.1)).requires_grad_(False)
    given = torch.randn(3, 4), torch.randn(5, 6), torch.randn(5)
    program, data = tmp_path / "model.pt2", tmp_path / "data.pt"
    torch.export.save(torch.export.export(model, given), program)
    torch.save([*given, model(*given)], data)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", LOAD, str(program), str(data)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_graphs_hold_epilogues_and_not_where_they_are() -> None:
    given = torch.randn(3, 4), torch.randn(5, 6), torch.randn(5)
    graphs = set()
    for factor in (0.1, 0.1, 0.2):
        program = torch.export.export(Model(scaled(factor)).requires_grad_(False), given)
        graphs.add(str(program.graph))
    assert len(graphs) == 2
    names = {cg.plan("NN", given[0], torch.randn(4, 2))._number for _ in range(100)}
    assert len(names) == 100 and min(map(len, names)) > 12


def test_other_epilogues_are_compiled_anew() -> None:
    x, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    torch._dynamo.reset()
    function = lambda e: cg.gemm("NT", x, w, epilogue=e, bias=b) + 1  # noqa: E731
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for factor in (1.0, 2.0, 0.1, float("nan")):
        epilogue = scaled(factor)
        torch.testing.assert_close(compiled(epilogue), function(epilogue), equal_nan=True)
    torch._dynamo.reset()
