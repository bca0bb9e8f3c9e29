"""8-bit optimizers beside bitsandbytes' and beside 32 bits: losses of a small model, state size, interchange.

    python benchmarks/optimizers.py [--peer FOLDER] [--steps 300] [--task text] [--only NAME ...]

FOLDER is where bitsandbytes is installed, when it is not beside rung. The tasks: ``text``, the next byte of rung's own
documentation, and ``regression``, a linear map without noise, whose loss falls to a hundredth, so that the smallest
difference of two optimizers is a large share of it. Prints the mean loss of the last 20 steps with
rung's optimizer in 8 bits, bitsandbytes' in 8 bits, and rung's in 32 bits; their differences; the bytes of the 8-bit
state as a share of the 32-bit one; and how far parameters lie apart after one more step when rung goes on from
bitsandbytes' state dictionary. bitsandbytes does not bound the update (``max_unorm``) of tensors whose state has 8
bits: LAMB-free and LARS-free are rung's without that bound for those. Some 10 s of one core for each.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rung.nn import optim

#: Learning rates and what else an optimizer needs, by task.
_REGRESSION = {
    "Adam": {"lr": 3e-3},
    "AdamW": {"lr": 3e-3},
    "AdEMAMix": {"lr": 2e-3},
    "Lion": {"lr": 1e-3},
    "LAMB": {"lr": 0.02},
    "LAMB-free": {"lr": 0.02},
    "LARS": {"lr": 0.3, "momentum": 0.9},
    "LARS-free": {"lr": 0.3, "momentum": 0.9},
    "RMSprop": {"lr": 1e-3},
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "Adagrad": {"lr": 0.05},
}
_TEXT = {
    "Adam": {"lr": 1e-3},
    "AdamW": {"lr": 1e-3},
    "AdEMAMix": {"lr": 1e-3},
    "Lion": {"lr": 2e-4},
    "LAMB": {"lr": 0.01},
    "LAMB-free": {"lr": 0.01},
    "LARS": {"lr": 0.3, "momentum": 0.9},
    "LARS-free": {"lr": 0.3, "momentum": 0.9},
    "RMSprop": {"lr": 1e-3},
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adagrad": {"lr": 0.01},
}
_MIN_8BIT = 4096  # values of a tensor from which on its state has 8 bits
_BEFORE = 16  # bytes that the next one is told from

Loss = Callable[[], torch.Tensor]
Make = Callable[[Any], torch.optim.Optimizer]


def regression(generator: torch.Generator) -> tuple[nn.Module, Loss]:
    """A network, and its loss on fresh data."""
    model = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 64))
    target = torch.randn(64, 64, generator=generator) / 8

    def loss() -> torch.Tensor:
        x = torch.randn(64, 64, generator=generator)
        return (model(x) - x @ target).square().mean()

    return model, loss


def text(generator: torch.Generator) -> tuple[nn.Module, Loss]:
    """The same; 64 places in the text at a time."""
    pages = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
    whole = torch.frombuffer(bytearray(b"".join(page.read_bytes() for page in pages)), dtype=torch.uint8).long()
    tail = [nn.Flatten(), nn.Linear(32 * _BEFORE, 256), nn.GELU(), nn.Linear(256, 256)]
    model = nn.Sequential(nn.Embedding(256, 32), *tail)

    def loss() -> torch.Tensor:
        places = torch.randint(len(whole) - _BEFORE, (64,), generator=generator)
        rows = whole[places[:, None] + torch.arange(_BEFORE + 1)]
        return nn.functional.cross_entropy(model(rows[:, :_BEFORE]), rows[:, _BEFORE])

    return model, loss


#: The tasks by name: the network, and what the optimizers need for it.
TASKS = {"text": (text, _TEXT), "regression": (regression, _REGRESSION)}


def trained(make: Make, steps: int, task: str) -> tuple[float, nn.Module, torch.optim.Optimizer]:
    """The mean loss of the last 20 steps, the network and the optimizer; always the same data."""
    torch.manual_seed(0)
    model, next_loss = TASKS[task][0](torch.Generator().manual_seed(1))
    optimizer, losses = make(model.parameters()), []
    for _ in range(steps):
        loss = next_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[-20:]) / len(losses[-20:]), model, optimizer


def state_bytes(optimizer: torch.optim.Optimizer, model: nn.Module) -> int:
    """Bytes of the state of the large parameters, without the codebooks that all share."""
    large = [p for p in model.parameters() if p.numel() >= 65536]
    states = [optimizer.state[p] for p in large]
    return sum(v.nbytes for state in states for k, v in state.items() if k.startswith(("state", "absmax")))


def apart(make: Make, theirs: Make, task: str) -> float:
    """The largest difference of a parameter one step after rung has taken over the peer's state."""
    _, model, optimizer = trained(theirs, 5, task)
    twin = copy.deepcopy(model)
    own = make(twin.parameters())
    own.load_state_dict(optimizer.state_dict())
    for network, taken in ((model, optimizer), (twin, own)):
        for p in network.parameters():
            p.grad = torch.full_like(p, 0.01)
        taken.step()
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="folder with bitsandbytes")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--task", choices=TASKS, default="text")
    parser.add_argument("--only", nargs="+", choices=_TEXT, default=list(_TEXT))
    chosen = parser.parse_args()
    if chosen.peer:
        sys.path.append(chosen.peer)
    import bitsandbytes

    print("optimizer   rung 8    bnb 8   rung 32  to bnb 8  to 32 bit  state  one step apart")
    for name in chosen.only:
        options = TASKS[chosen.task][1][name]

        def of(module: Any, bits: int, name: str = name, options: Any = options) -> Make:
            def make(params: Any) -> torch.optim.Optimizer:
                several = list(params)
                if module is optim and name.endswith("-free"):
                    large = [p for p in several if p.numel() >= _MIN_8BIT]
                    optim.GlobalOptimManager.get_instance().override_config(large, "max_unorm", 0.0)
                optimizer: torch.optim.Optimizer = getattr(module, f"{name.removesuffix('-free')}{bits}bit")(
                    several, **options
                )
                return optimizer

            return make

        ours, model, own = trained(of(optim, 8), chosen.steps, chosen.task)
        theirs, _, _ = trained(of(bitsandbytes.optim, 8), chosen.steps, chosen.task)
        exact, same, whole = trained(of(optim, 32), chosen.steps, chosen.task)
        share = state_bytes(own, model) / state_bytes(whole, same)
        step = apart(of(optim, 8), of(bitsandbytes.optim, 8), chosen.task)
        print(
            f"{name:9} {ours:9.5f} {theirs:8.5f} {exact:9.5f} {ours / theirs - 1:+9.2%} {ours / exact - 1:+10.2%}"
            f" {share:6.1%} {step:12.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
