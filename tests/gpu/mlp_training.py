"""A transformer's MLP, forward and backward, beside PyTorch's: losses and times of training steps.

    python tests/gpu/mlp_training.py --steps 50

``y = gelu(x w1^T + b1) w2^T + b2`` with a hidden size of 14336 of 4096, bfloat16, trained by AdamW
to a fixed target: with `cute_gemm.torch.Linear`, with `cute_gemm.torch.mlp`, and with
`torch.nn.Linear`, each eager and compiled, all from the same weights. Losses have to agree within
bfloat16's noise; times are medians of steps, forward and backward, without the optimizer.
"""

import statistics
import sys
from typing import Any

import torch
from graph_times import parsed, write
from torch import nn
from torch.nn import functional

import cute_gemm.torch as ct


class Layers(nn.Module):
    """Two linear layers of a class, with gelu between."""

    def __init__(self, kind: str, width: int, hidden: int) -> None:
        super().__init__()
        given: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.kind = kind
        first = {"activation": "gelu"} if kind == "Linear" else {}
        linear = nn.Linear if kind == "torch" else ct.Linear
        self.up = linear(width, hidden, **first, **given)
        self.down = linear(hidden, width, **given)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the MLP's result."""
        if self.kind == "mlp":
            up, down = self.up, self.down
            return ct.mlp(x, up.weight, up.bias, down.weight, down.bias, "gelu")
        hidden = self.up(x)
        return self.down(functional.gelu(hidden) if self.kind == "torch" else hidden)


def trained(model: nn.Module, x: torch.Tensor, target: torch.Tensor, steps: int) -> Any:
    """Losses of so many steps, and the median milliseconds of a step's forward and backward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, times = [], []
    for step in range(steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        begin.record()
        loss = functional.mse_loss(model(x).float(), target)
        loss.backward()
        end.record()
        optimizer.step()
        losses.append(float(loss.detach()))
        end.synchronize()
        if step >= 5:
            times.append(begin.elapsed_time(end))
    return losses, statistics.median(times)


def main() -> int:
    given = parsed(__doc__, seed=None, rounds=None, steps=50, tokens=4096)
    torch.manual_seed(0)
    width, hidden = 4096, 14336
    x = torch.randn(given.tokens, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randn(given.tokens, width, device="cuda")
    start = Layers("torch", width, hidden).state_dict()
    found = {}
    for compiled in (False, True):
        for kind in ("torch", "Linear", "mlp"):
            torch._dynamo.reset()
            model: Any = Layers(kind, width, hidden)
            model.load_state_dict(start)
            losses, time = trained(
                torch.compile(model) if compiled else model, x, target, given.steps
            )
            name = f"{kind}{', compiled' * compiled}"
            found[name] = {"losses": losses, "milliseconds": time}
            print(
                f"{name:18s} {time:7.3f} ms  losses {losses[0]:.5f} ... {losses[-1]:.5f}",
                flush=True,
            )
    wrong = 0
    reference = found["torch"]
    for name, each in found.items():
        off = max(abs(a - b) / b for a, b in zip(each["losses"], reference["losses"], strict=True))
        base = found["torch, compiled" if "compiled" in name else "torch"]["milliseconds"]
        wrong += off > 1e-2
        print(
            f"{name:18s} time of torch's over this one's {base / each['milliseconds']:.3f}, losses "
            f"off by {off:.1e} at most"
        )
    write(given.json, found)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
