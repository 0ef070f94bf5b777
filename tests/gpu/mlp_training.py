"""Compare the training of a transformer's MLP with PyTorch's: losses and times of steps.

    python tests/gpu/mlp_training.py --steps 50 --activations gelu,relu2,swiglu,geglu

The MLP is ``y = f(x w1^T + b1) w2^T + b2`` with a width of 4096 and a hidden size of 14336, in
bfloat16, trained by AdamW to a fixed target. It is computed with `cute_gemm.torch.Linear`, the same
with ``accumulate_main_grad=True``, `cute_gemm.torch.mlp`, and `torch.nn.Linear`, each eager and
compiled, from the same initial weights. Losses must agree within the noise of bfloat16. Times are
medians of forward and backward, without the optimizer.
"""

import statistics
import sys
from typing import Any

import torch
from graph_times import parsed, write
from torch import nn
from torch.nn import functional

import cute_gemm.torch as ct

ACTIVATIONS: dict[str, Any] = {
    "gelu": functional.gelu,
    "relu2": lambda z: functional.relu(z).square(),
    "swiglu": lambda z: functional.silu(z[..., 0::2]) * z[..., 1::2],
    "geglu": lambda z: functional.gelu(z[..., 0::2]) * z[..., 1::2],
}
KINDS = ("torch", "Linear", "main_grad", "mlp")


class Layers(nn.Module):
    """Two linear layers of a kind, with an activation between them."""

    def __init__(self, kind: str, activation: str, width: int, hidden: int) -> None:
        super().__init__()
        given: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.kind, self.activation = kind, activation
        up = 2 * hidden if activation.endswith("glu") else hidden
        if kind == "torch":
            self.up, self.down = nn.Linear(width, up, **given), nn.Linear(hidden, width, **given)
            return
        given["accumulate_main_grad"] = kind == "main_grad"
        self.up = ct.Linear(width, up, activation=activation, **given)
        self.down = ct.Linear(hidden, width, **given)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the MLP."""
        up, down = self.up, self.down
        if self.kind == "mlp":
            return ct.mlp(x, up.weight, up.bias, down.weight, down.bias, self.activation)
        return down(ACTIVATIONS[self.activation](up(x)) if self.kind == "torch" else up(x))


def trained(
    model: Any, compiled: bool, x: torch.Tensor, target: torch.Tensor, steps: int
) -> tuple[list[float], float]:
    """Return the losses of all steps, and median milliseconds of forward and backward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    summed = [model.up.weight, model.down.weight] if model.kind == "main_grad" else []
    for weight in summed:
        weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
    run = torch.compile(model) if compiled else model
    losses, times = [], []
    for step in range(steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        begin.record()
        loss = functional.mse_loss(run(x).float(), target)
        loss.backward()
        end.record()
        for weight in summed:
            weight.grad = weight.main_grad.to(weight.dtype)
        optimizer.step()
        for weight in summed:
            weight.main_grad.zero_()
        losses.append(float(loss.detach()))
        end.synchronize()
        if step >= 5:
            times.append(begin.elapsed_time(end))
    return losses, statistics.median(times)


def compare(activation: str, steps: int, x: torch.Tensor, target: torch.Tensor) -> dict[str, Any]:
    """Measure and print losses and milliseconds of each kind with one activation."""
    width, hidden = 4096, 14336
    start = Layers("torch", activation, width, hidden).state_dict()
    found: dict[str, Any] = {}
    for compiled in (False, True):
        for kind in KINDS:
            torch._dynamo.reset()
            model = Layers(kind, activation, width, hidden)
            model.load_state_dict(start)
            losses, time = trained(model, compiled, x, target, steps)
            found[kind + ", compiled" * compiled] = {"losses": losses, "milliseconds": time}
    reference = found["torch"]["losses"]
    for name, each in found.items():
        losses = each["losses"]
        each["off"] = max(abs(a - b) / b for a, b in zip(losses, reference, strict=True))
        base = found["torch, compiled" if "compiled" in name else "torch"]["milliseconds"]
        print(
            f"{activation:7} {name:20} {each['milliseconds']:7.3f} ms, time of torch's over it "
            f"{base / each['milliseconds']:.3f}; losses {losses[0]:.5f} ... {losses[-1]:.5f}, "
            f"off by {each['off']:.1e} at most",
            flush=True,
        )
    return found


def main() -> int:
    given = parsed(
        __doc__, seed=None, rounds=None, steps=50, tokens=4096, activations="gelu"
    )  # fmt: skip
    torch.manual_seed(0)
    x = torch.randn(given.tokens, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randn(given.tokens, 4096, device="cuda")
    found = {
        activation: compare(activation, given.steps, x, target)
        for activation in given.activations.split(",")
    }
    write(given.json, found)
    return int(any(each["off"] > 1e-2 for kinds in found.values() for each in kinds.values()))


if __name__ == "__main__":
    sys.exit(main())
