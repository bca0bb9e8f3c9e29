"""Measure the cost of a simulated card: training step and forward pass of a Llama, alternating with plain ones.

    python benchmarks/simulate.py [--card v100] [--rounds 3]

Prints the ratio of processor times of this thread and the cost of an operation in microseconds, the best of the
rounds, with the bar: less than twice the time where the plain step takes 20 ms or more, else at most 30 us an
operation.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

import rung

RATIO, LONG, COST = 2.0, 0.020, 30e-6
#: (hidden size, layers, tokens)
SIZES = ((64, 2, 4), (256, 4, 64), (512, 4, 128), (1024, 4, 128))


class Count(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def llama(hidden: int, layers: int) -> LlamaForCausalLM:
    """Random weights, a vocabulary of 512."""
    config = LlamaConfig(
        vocab_size=512, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, ids: torch.Tensor) -> None:
    """Forward and backward."""
    model(ids, labels=ids).loss.backward()
    model.zero_grad()


@torch.inference_mode()
def forward(model: LlamaForCausalLM, ids: torch.Tensor) -> None:
    """One pass over the prompt."""
    model(ids)


def best(work: Callable[[], None], runs: int = 7) -> float:
    """Seconds of this thread's processor time, the best of the runs."""
    found = []
    for _ in range(runs):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return min(found)


def main() -> None:
    """Prints a row a size and kind of step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", default="v100")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the work of other threads would not be seen
    print(f"{'model':24} {'step':8} {'operations':>10} {'plain ms':>9} {'ratio':>6} {'us/op':>6}  bar")
    for hidden, layers, tokens in SIZES:
        model, ids = llama(hidden, layers), torch.randint(0, 512, (1, tokens))
        for step in (train, forward):
            with Count() as count:
                step(model, ids)
            rows = []
            for _ in range(options.rounds):
                plain = best(lambda: step(model, ids))  # noqa: B023
                with rung.simulate(options.card):
                    there, moved = copy.deepcopy(model).cuda(), ids.cuda()
                    step(there, moved)
                    rows.append((best(lambda: step(there, moved)) / plain, plain))  # noqa: B023
            ratio, plain = min(rows)
            cost = (ratio - 1) * plain / count.operations
            bar, passed = (
                (f"< {RATIO:g} x", ratio < RATIO) if plain >= LONG else (f"<= {1e6 * COST:g} us", cost <= COST)
            )
            name = f"{hidden} x {layers}, {tokens} tokens"
            figures = f"{count.operations:>10} {1e3 * plain:>9.1f} {ratio:>6.2f} {1e6 * cost:>6.1f}"
            print(f"{name:24} {step.__name__:8} {figures}  {bar}: {'held' if passed else 'missed'}")


if __name__ == "__main__":
    main()
