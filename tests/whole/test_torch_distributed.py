"""Test ``cute_gemm.torch`` on DTensors with two processes of one machine, over gloo or NCCL."""

import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import cute_gemm.torch as ct
from cute_gemm.errors import OptionError

#: Seconds for both processes.
LIMIT = 100


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    run_two_processes(tmp_path, "cpu", LIMIT)


def run_two_processes(tmp_path: Path, device: str, limit: int) -> None:
    """Run the cases of a device in two processes, on the CPU or on one GPU each."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    words = [sys.executable, __file__, str(tmp_path / "store"), device, str(limit)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*words, rank], env=environment, **pipes) for rank in "01"]
    try:
        said = [process.communicate(timeout=limit) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, said, strict=True):
        assert process.returncode == 0, f"{out}\n{err[-4000:]}"
        assert out.split() == [case.__name__ for case in CASES[device]]


# ---- cases of each process ----------------------------------------------------------------------


class Layers(torch.nn.Module):
    """A column-parallel layer followed by a row-parallel one."""

    def __init__(self, up: str | None, down: str | None) -> None:
        super().__init__()
        self.up = ct.Linear(6, 8, activation=up, dtype=torch.float64)
        self.down = ct.Linear(8, 4, activation=down, dtype=torch.float64)

    def forward(self, x: Any) -> Any:
        return self.down(self.up(x))


def pair(up: str | None, down: str | None) -> tuple[Layers, Layers]:
    torch.manual_seed(1)
    whole, parallel = Layers(up, down), Layers(up, down)
    parallel.load_state_dict(whole.state_dict())
    return whole, parallel


def full(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def check_gradients(whole: Any, parallel: Any) -> None:
    for (name, x), y in zip(whole.named_parameters(), parallel.parameters(), strict=True):
        torch.testing.assert_close(full(y.grad), x.grad, msg=lambda said, at=name: f"{at}: {said}")


def columns_and_rows(mesh: Any) -> None:
    for up, down in (("gelu", None), ("relu", "silu"), (None, "tanh")):
        whole, parallel = pair(up, down)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(parallel, mesh, plan)
        x, y = (torch.randn(2, 3, 6, dtype=torch.float64) for _ in range(2))
        dist.broadcast(x, 0)
        y.copy_(x)
        with CommDebugMode() as forward:
            result = parallel(x.requires_grad_())
        # One all-reduce, with or without an activation after it. Weights are not communicated.
        assert forward.get_total_counts() == 1, forward.get_comm_counts()
        expected = whole(y.requires_grad_())
        torch.testing.assert_close(result, expected)
        with CommDebugMode() as backward:
            result.square().sum().backward()
        assert backward.get_total_counts() == 1, backward.get_comm_counts()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        check_gradients(whole, parallel)
    compiled = torch.compile(parallel, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)


def sharded_sequences(mesh: Any) -> None:
    whole, parallel = pair("gelu", "relu")
    plan = {
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(parallel, mesh, plan)
    torch.manual_seed(2)
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    mine = x.chunk(2, 1)[mesh.get_local_rank()]
    result = parallel(mine)
    expected = whole(x)
    torch.testing.assert_close(result, expected.chunk(2, 1)[mesh.get_local_rank()])
    result.square().sum().backward()
    expected.square().sum().backward()
    check_gradients(whole, parallel)


def every_placement(mesh: Any) -> None:
    """Test the product and its gradients for all placements of two operands."""
    torch.manual_seed(3)
    shapes = [((4, 6), (6, 8)), ((2, 4, 6), (6, 8)), ((2, 4, 6), (2, 6, 8)), ((4, 6), (2, 6, 8))]
    for first, second in shapes:
        compare(mesh, torch.matmul, ct.matmul, first, second)


def every_placement_of_a_layer(mesh: Any) -> None:
    torch.manual_seed(4)
    functional = torch.nn.functional
    for bias in ((), ((8,),)):
        compare(mesh, functional.linear, ct.linear, (2, 4, 6), (8, 6), *bias)
        compare(
            mesh,
            lambda *x: functional.gelu(functional.linear(*x)),
            lambda *x: ct.linear(*x, activation="gelu"),
            (2, 4, 6), (8, 6), *bias,
        )  # fmt: skip


def compare(
    mesh: Any, reference: Callable[..., Any], function: Callable[..., Any], *shapes: Any
) -> None:
    """Compare DTensors of all placements of the first two operands with tensors."""
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    several = [[Replicate(), *map(Shard, range(len(shape))), Partial()] for shape in shapes[:2]]
    for placements in itertools.product(*several):
        given = [x.clone().requires_grad_() for x in tensors]
        expected = reference(*given)
        expected.square().sum().backward()
        placed = [Replicate()] * len(shapes)
        placed[:2] = placements
        shared = []
        for x, placement in zip(tensors, placed, strict=True):
            if isinstance(placement, Partial):
                local = x * (0.25, 0.75)[mesh.get_local_rank()]
                each = DTensor.from_local(local, mesh, [placement])
            else:
                each = distribute_tensor(x, mesh, [placement])
            shared.append(each.detach().requires_grad_())
        result = function(*shared)
        where = f"{shapes} {placements}"
        torch.testing.assert_close(
            result.full_tensor(), expected, msg=lambda said, at=where: f"{at}: {said}"
        )
        result.redistribute(mesh, [Replicate()]).square().sum().backward()
        for x, each in zip(given, shared, strict=True):
            torch.testing.assert_close(
                each.grad.full_tensor(), x.grad, msg=lambda said, at=where: f"{at}: {said}"
            )


def sharded_parameters(mesh: Any) -> None:
    """Test FSDP, which frees the storage of parameters after each use, and resizes it before."""
    for activation in ("gelu", "relu"):
        whole, parallel = pair(activation, None)
        for layer in (parallel.up, parallel.down, parallel):
            fully_shard(layer, mesh=mesh)
        torch.manual_seed(5)
        x = torch.randn(2, 6, dtype=torch.float64)
        for _ in range(2):
            result, expected = parallel(x), whole(x)
            torch.testing.assert_close(result, expected)
            result.square().sum().backward()
            expected.square().sum().backward()
        check_gradients(whole, parallel)
        with torch.no_grad():
            torch.testing.assert_close(parallel(x), whole(x))


class Block(torch.nn.Module):
    """Two layers and a norm, with layers of the given class."""

    def __init__(self, layers: Any, activation: Any, **more: Any) -> None:
        super().__init__()
        self.up = layers(16, 32, **more)
        self.activation = activation
        self.norm = torch.nn.LayerNorm(32)
        self.down = layers(32, 8, **more)

    def forward(self, x: Any) -> Any:
        return self.down(self.norm(self.activation(self.up(x))))


def blocks(**more: Any) -> tuple[Block, Block]:
    """Return a block with PyTorch's layers and one with ours, with the same parameters."""
    torch.manual_seed(6)
    theirs = Block(torch.nn.Linear, torch.nn.functional.gelu)
    ours = Block(ct.Linear, torch.nn.functional.gelu, **more)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def batches(mesh: Any, count: int) -> Any:
    """Yield batches of this process, and those of both processes."""
    torch.manual_seed(7)
    for _ in range(count):
        x, y = torch.randn(2, 6, 16), torch.randn(2, 6, 8)
        rank = mesh.get_local_rank()
        yield (x[rank], y[rank]), (x, y)


def loss(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).square().mean()


def check_parameters(ours: Any, theirs: Any) -> None:
    for (name, x), y in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(
            full(x), y, rtol=1e-4, atol=1e-5, msg=lambda said, at=name: f"{at}: {said}"
        )


def steps_of_replicas(mesh: Any) -> None:
    """Test DDP with half a batch per process, against one process with PyTorch's layers."""
    theirs, ours = blocks()
    replica = torch.nn.parallel.DistributedDataParallel(ours)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (theirs, ours)]
    for mine, both in batches(mesh, 5):
        for model, batch in ((theirs, both), (replica, mine)):
            loss(model, batch).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    check_parameters(ours, theirs)


def steps_of_shards(mesh: Any) -> None:
    """Test FSDP2, with float32 gradients of two batches per step."""
    theirs, ours = blocks()
    for layer in (ours.up, ours.down, ours):
        fully_shard(layer, mesh=mesh)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (theirs, ours)]
    for number, (mine, both) in enumerate(batches(mesh, 6)):
        ours.set_requires_gradient_sync(number % 2 == 1)
        for model, batch in ((theirs, both), (ours, mine)):
            loss(model, batch).backward()
        for optimizer in optimizers if number % 2 else ():
            optimizer.step()
            optimizer.zero_grad()
    check_parameters(ours, theirs)
    _, sharded = blocks(accumulate_main_grad=True)
    fully_shard(sharded, mesh=mesh)
    with pytest.raises(OptionError, match="weight without main_grad"):  # gathered ones have none
        loss(sharded, mine)


def steps_of_replicas_with_main_grad(mesh: Any) -> None:
    """Test DDP of other parameters. The caller reduces ``main_grad`` over processes."""
    theirs, ours = blocks(accumulate_main_grad=True)
    weights = ours.up.weight, ours.down.weight
    for weight in weights:
        weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
    replica = torch.nn.parallel.DistributedDataParallel(ours)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (theirs, ours)]
    for number, (mine, both) in enumerate(batches(mesh, 6)):
        for model, batch in ((theirs, both), (replica, mine)):
            loss(model, batch).backward()
        if number % 2 == 0:
            continue  # gradients of two batches are added
        for weight in weights:
            dist.all_reduce(weight.main_grad)
            weight.grad = (weight.main_grad / dist.get_world_size()).to(weight.dtype)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for weight in weights:
            weight.main_grad.zero_()
    check_parameters(ours, theirs)


#: Cases by device. Placements of operands do not depend on it.
CASES = {
    "cpu": [
        columns_and_rows, sharded_sequences, sharded_parameters, every_placement,
        every_placement_of_a_layer, steps_of_replicas, steps_of_shards,
        steps_of_replicas_with_main_grad,
    ],
    "cuda": [
        columns_and_rows, sharded_sequences, sharded_parameters, steps_of_replicas,
        steps_of_shards, steps_of_replicas_with_main_grad,
    ],
}  # fmt: skip

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    (store, device, limit), rank = sys.argv[1:4], int(sys.argv[4])
    if device == "cuda":
        torch.set_default_device(f"cuda:{rank}")
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{store}", rank=rank,
        world_size=2, timeout=timedelta(seconds=int(limit) / 2),
    )  # fmt: skip
    mesh = init_device_mesh(device, (2,))
    for case in CASES[device]:
        case(mesh)
        print(case.__name__, flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo may outlive their resources, which aborts the process
