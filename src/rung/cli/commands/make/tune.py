"""``rung tune MODEL DATA --out DIR``: trains a LoRA on a JSONL file; stopped or killed, it goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import options

if TYPE_CHECKING:
    from rung.training.tune import Outcome


def tune(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder, a GGUF file, demo, or a hub name.")],
    data: Annotated[Path, typer.Argument(help='JSONL: {"messages": [...]} or {"text": "..."} on each line.')],
    out: Annotated[Path, typer.Option("--out", help="Folder of the adapter.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format", help="Hold the base in this format, by default nf4; bf16: as it is.", show_default=False
        ),
    ] = None,
    epochs: Annotated[
        float, typer.Option("--epochs", min=0.001, help="Number of times that training reads every row.")
    ] = 3.0,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", min=1e-9, help="Highest learning rate of the schedule.")
    ] = 2e-4,
    rank: Annotated[int, typer.Option("--rank", min=1, help="Rank of the adapter's matrices.")] = 16,
    alpha: Annotated[int, typer.Option("--alpha", min=1, help="The adapter is scaled by alpha / rank.")] = 32,
    dropout: Annotated[
        float, typer.Option("--dropout", min=0.0, max=0.99, help="Dropout in front of the adapter.")
    ] = 0.05,
    targets: Annotated[
        str, typer.Option("--targets", help="Layers that get an adapter: all-linear, or names like q_proj,v_proj.")
    ] = "all-linear",
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=2, help="Longer rows are cut; 1024 if the model holds as much.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Number of rows at a time.")] = 8,
    accumulate: Annotated[int, typer.Option("--accumulate", min=1, help="Number of batches that make a step.")] = 1,
    packing: Annotated[bool, typer.Option("--packing", help="Put short rows together.")] = False,
    eval_split: Annotated[float, typer.Option("--eval-split", help="Hold out this share of the rows.")] = 0.0,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the order of rows, of dropout and of the adapter's first values.")
    ] = 42,
    device: options.Device = None,
    software: options.Software = None,
    memory: options.Memory = None,
    offline: options.Offline = False,
    json: options.Json = False,
) -> None:
    """Train a LoRA for a model: QLoRA, planned for the memory that is there.

    The same command goes on after Ctrl-C or when it was killed.
    """
    from rung.cli.common import quiet_bitsandbytes, simulated
    from rung.cli.views.output import note
    from rung.engine.planning import not_here
    from rung.hardware.select import catalog_device
    from rung.training.tune import Options
    from rung.training.tune import tune as train

    def say(text: str) -> None:
        if not json:
            note(text)

    out = out.expanduser()
    settings = Options(
        format=format,
        epochs=epochs,
        learning_rate=learning_rate,
        rank=rank,
        alpha=alpha,
        dropout=dropout,
        targets=targets,
        max_length=max_length,
        batch=batch,
        accumulate=accumulate,
        packing=packing,
        eval_split=eval_split,
        seed=seed,
    )
    quiet_bitsandbytes()
    with simulated(device, software) as chosen:
        if chosen is not None and (card := catalog_device(chosen)) is not None:
            raise not_here(card, chosen)
        base = _folder(model, data, out, offline, say)
        on_loss = _loss_printer(say)
        done = train(
            base, data, out, settings, device=chosen, memory=memory, offline=offline, on_note=say, on_loss=on_loss
        )
    _report(done, model, out, json, say)
    if done.stopped:
        sys.exit(130)


def _loss_printer(say: Callable[[str], None]) -> Callable[[int, int, dict[str, float]], None]:
    """Return a callback that prints every loss of held-out rows, and about twenty of training."""

    def loss(step: int, last: int, logs: dict[str, float]) -> None:
        every = max(1, last // 20)
        if "eval_loss" in logs:
            say(f"step {step} of {last} · held out {float(logs['eval_loss']):.4f}")
        elif "loss" in logs and (step % every == 0 or step in (1, last)):
            say(f"step {step} of {last} · loss {float(logs['loss']):.4f}")

    return loss


def _report(done: Outcome, model: str, out: Path, json: bool, say: Callable[[str], None]) -> None:
    """Print what a run came to, and the command that follows."""
    from rung.cli.views.output import print_json
    from rung.training.tune import CURVE

    if json:
        print_json({"out": str(out), "steps": done.steps, "losses": done.losses, "held_out": done.held_out})
    elif done.stopped:
        say(f"stopped after step {done.steps}, saved in {out}; the same command goes on")
    else:
        say(f"{out} · {done.steps} steps · loss {out / CURVE}\nrung run {model} --adapter {out}")


def _folder(model: str, data: Path, out: Path, offline: bool, say: Callable[[str], None]) -> str:
    """The model; of a GGUF file the folder that it is decoded into, beside the adapter."""
    from rung.conversion.convert import converting
    from rung.conversion.writing import write
    from rung.core.files import state_of
    from rung.engine import planning
    from rung.models.lookup import find_card
    from rung.training.data import read_rows

    card = find_card(model, offline=offline, on_note=say)
    if card.kind == "folder":
        return model
    read_rows(data.expanduser())  # wrong data is said before a model is decoded for it
    folder = out.with_name(f"{out.name}-base-{state_of(map(Path, card.files))[:8]}")
    if not folder.exists():
        try:
            write(converting(card, False, None), folder, planning.compute_threads(None))
        except KeyboardInterrupt:
            say(f"the same command goes on; what is decoded is kept in {folder}.part")
            raise
        say(f"{card.name} is a GGUF file: decoded into {folder}, to which the adapter is trained")
    return str(folder)
