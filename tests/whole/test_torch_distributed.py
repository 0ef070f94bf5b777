"""``cute_gemm.torch`` on DTensors: two processes of one machine, over gloo or NCCL."""

import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

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

#: Seconds that both processes have.
LIMIT = 100


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    run_two_processes(tmp_path, "cpu", LIMIT)


def run_two_processes(tmp_path: Path, device: str, limit: int) -> None:
    """Run the cases of a device in two processes, on the CPU or on a GPU each."""
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


# ---- what each process does ---------------------------------------------------------------------


class Layers(torch.nn.Module):
    """A column-parallel layer in front of a row-parallel one."""

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
        # One sum over processes, be there an activation behind it or not; weights stay.
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
    """The product and its gradients, from all placements of two operands."""
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
    """Compute with DTensors of all placements of the first two operands, and with tensors."""
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
    """FSDP, which frees the storage of parameters after each use, and resizes it before."""
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


#: By device. Placements of operands do not depend on it.
CASES = {
    "cpu": [
        columns_and_rows, sharded_sequences, sharded_parameters, every_placement,
        every_placement_of_a_layer,
    ],
    "cuda": [columns_and_rows, sharded_sequences, sharded_parameters],
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
    os._exit(0)  # gloo's threads may outlive what they use, which aborts the process
