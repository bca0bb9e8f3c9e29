"""TRL's SFTTrainer that goes on in smaller pieces when memory ends, and stops before NaN reaches the adapter."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import SFTTrainer
from trl.kernels import chunked_logprob

from rung.core.errors import OutOfMemory, RungError
from rung.core.text import count
from rung.core.types import Device, StepClass
from rung.diagnosis import classify
from rung.run.torch_private import has_triton


class Diverged(RungError):
    """The loss or its gradients are no numbers any more."""

    code = "training-diverged"


@contextlib.contextmanager
def plain_loss(device: Device) -> Iterator[None]:
    """TRL computes its loss with Triton on every GPU, also where Triton compiles nothing (below 7.0, simulated cards):
    while in the block in plain torch there."""
    before = chunked_logprob._TRITON_AVAILABLE
    chunked_logprob._TRITON_AVAILABLE = before and device.real and has_triton()
    try:
        yield
    finally:
        chunked_logprob._TRITON_AVAILABLE = before


class Trainer(SFTTrainer):
    """SFTTrainer; ``on_smaller`` hears of a micro-batch that was divided, with its rows before and after."""

    on_smaller: Callable[[int, int], None] = staticmethod(lambda before, after: None)
    watch: Watch
    _rows: int | None = None

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """One micro-batch, in pieces once it was too large: their losses are sums over the same number of tokens, so
        that the gradient is the same."""
        rows = len(inputs["input_ids"])
        total, first = torch.zeros((), device=self.args.device), 0
        if num_items_in_batch is None:
            num_items_in_batch = int((inputs["labels"][:, 1:] != -100).sum())
        while first < rows:
            size = min(self._rows or rows, rows - first)
            piece = {name: _part(value, first, first + size, rows) for name, value in inputs.items()}
            kept = [None if p.grad is None else p.grad.clone() for p in self._trained()]
            try:
                total = total + super().training_step(model, piece, num_items_in_batch).to(total.device)
            except Exception as error:
                if not is_full(error):
                    raise
                if size == 1:
                    raise _too_large(inputs["input_ids"].shape[1]) from error
            else:
                first += size
                continue
            for parameter, gradient in zip(self._trained(), kept, strict=True):
                parameter.grad = gradient
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._rows = size // 2
            self.on_smaller(size, self._rows)
        return total

    def compute_loss(self, model: torch.nn.Module, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """SFTTrainer's. Raises ``Diverged`` for a loss in training that is no number."""
        found = super().compute_loss(model, inputs, *arguments, **options)
        loss = found[0] if isinstance(found, tuple) else found
        if model.training and not math.isfinite(float(loss.detach())):
            step = self.state.global_step
            raise _diverged("the loss", step, self.watch.undo(self._trained(), step))
        return found

    def _trained(self) -> list[torch.nn.Parameter]:
        model: Any = self.model
        return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _part(value: Any, first: int, last: int, rows: int) -> Any:
    return value[first:last] if isinstance(value, Tensor) and value.ndim and len(value) == rows else value


def is_full(error: Exception) -> bool:
    """Return whether an error means that a memory is full."""
    if isinstance(error, MemoryError):
        return True
    found = classify(error)
    return found is not None and found.signature.step is StepClass.OUT_OF_MEMORY


def _too_large(length: int) -> OutOfMemory:
    return OutOfMemory(
        "The memory is full with a single row at a time.",
        [f"the row has {length:,} tokens"],
        ["--max-length with less tokens helps most", "--memory with what is really free makes rung plan for it"],
    )


def _diverged(what: str, step: int, good: int) -> Diverged:
    return Diverged(
        f"After {count(step, 'step')} {what} is no number any more (NaN or Inf): training has stopped.",
        [f"the adapter is kept as it was after {count(good, 'step')}"],
        ["--learning-rate with a tenth of it, in a new --out folder"],
    )


class Watch(TrainerCallback):
    """Looks at gradients before they reach the adapter, which it can give back as it was before the last step; tells of
    losses, and stops at the end of a step on Ctrl-C.

    A context manager: a second Ctrl-C stops at once.
    """

    def __init__(self, on_loss: Callable[[int, int, dict[str, float]], None]) -> None:
        self._on_loss = on_loss
        self._good: list[Tensor] = []
        self.stopped = False

    def __enter__(self) -> Watch:
        self._before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *details: Any) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Raises ``Diverged`` for gradients with NaN; with f16 their scaling takes care of itself."""
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients = [p.grad for p in trained if p.grad is not None]
        if not args.fp16 and not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            raise _diverged("a gradient", state.global_step, state.global_step)
        self._good = [p.detach().clone() for p in trained]

    def undo(self, trained: list[torch.nn.Parameter], step: int) -> int:
        """Takes the last step back: its adapter gave a loss that is no number. Returns the steps that are left."""
        with torch.no_grad():
            for parameter, good in zip(trained, self._good, strict=bool(self._good)):
                parameter.copy_(good)
        return step - bool(self._good)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Saves and stops after Ctrl-C."""
        if self.stopped:
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Passes losses on."""
        self._on_loss(state.global_step, state.max_steps, dict(logs or {}))
