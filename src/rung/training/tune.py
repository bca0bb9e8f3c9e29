"""``rung tune``: QLoRA with TRL, planned for the memory that is there; stopped or killed, it goes on where it was."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import math
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung import formats
from rung.core.errors import BadFile, ContextTooLong, DiskFull, SoftwareMissing, UsageError
from rung.core.files import write_whole
from rung.core.text import count, did_you_mean, quoted, size
from rung.core.types import Device
from rung.engine.planning import device_here
from rung.measure.curves import curves
from rung.models.card import ModelCard
from rung.models.lookup import find_card, name_of
from rung.planning.request import parse_memory
from rung.planning.weight_plan import is_linear
from rung.training.data import read_rows
from rung.training.fitting import STORED, fit
from rung.training.options import Options as Options
from rung.training.options import names

if TYPE_CHECKING:
    from rung.training.trainer import Trainer, Watch

#: Tokens of a row, where nothing is asked for.
LENGTH = 1024
PACKAGES = ("trl", "datasets", "peft", "transformers", "accelerate")
STATE, CURVE, CHECKPOINTS = "tune.json", "loss.svg", "checkpoints"
#: Files that a whole checkpoint has; the trainer writes the last one last.
_WHOLE = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")


@dataclass(frozen=True)
class Outcome:
    """Hold what a run came to: losses are (step, loss); ``stopped`` after Ctrl-C."""

    out: Path
    steps: int
    losses: tuple[tuple[int, float], ...]
    held_out: tuple[tuple[int, float], ...]
    stopped: bool


def tune(
    model: str,
    data: str | Path,
    out: str | Path,
    options: Options | None = None,
    *,
    device: str | None = None,
    memory: str | int | Mapping[str, str | int] | None = None,
    offline: bool = False,
    on_note: Callable[[str], None] = lambda note: None,
    on_loss: Callable[[int, int, dict[str, float]], None] = lambda step, last, logs: None,
) -> Outcome:
    """Trains a LoRA for a model on the rows of a JSONL file, and saves it in the folder ``out`` as PEFT does.

    Called again with the same arguments it goes on after the last checkpoint. Raises ``SoftwareMissing``, ``BadFile``,
    ``UsageError``, ``ContextTooLong``, ``DoesNotFit``, ``OutOfMemory``, and ``Diverged`` when the loss is NaN.
    """
    settled, folder = options or Options(), Path(out).expanduser()
    _need_packages()
    card = find_card(model, offline=offline, on_note=on_note)
    _check(card, settled, folder)
    format = _format(card, settled.format)
    settled = replace(settled, format=format)
    rows, dropped = read_rows(Path(data).expanduser())
    _claim(folder, _identity(card, Path(data).expanduser(), settled))

    from transformers.utils.logging import disable_progress_bar

    from rung.training.data import encode_rows
    from rung.training.setup import load_base, load_tokenizer, lora, settings

    disable_progress_bar()
    length = settled.max_length or min(LENGTH, card.decoder.context)
    encoded = encode_rows(rows, load_tokenizer(card), length, dropped)
    for note in (*dropped.sentences(), *encoded.notes):
        on_note(note)
    chosen = device_here(device, on_note)
    budget = parse_memory(memory)
    planned = fit(
        card,
        chosen,
        format,
        rank=settled.rank,
        batch=min(settled.batch, len(encoded.rows)),
        accumulate=settled.accumulate,
        length=length if settled.packing else encoded.longest,
        budget=budget.get(chosen.id, budget.get("*", chosen.budget)),
    )
    on_note(planned.words)
    training, evaluation = _split(encoded.rows, settled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # what libraries will rename is no concern of who trains
        base = load_base(card, format, planned.dtype)
        arguments = settings(settled, planned, length, folder / CHECKPOINTS, len(training), bool(evaluation))
        return _train(card, chosen, base, training, evaluation, lora(settled), arguments, folder, on_note, on_loss)


def _need_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SoftwareMissing(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; training needs it.",
            (),
            ["pip install 'rung[run,tune]'"],
        )


def _check(card: ModelCard, options: Options, folder: Path) -> None:
    """Raises for what can be known before anything is read."""
    if card.kind != "folder":
        raise UsageError(
            f"{card.name} is a GGUF file; adapters are trained on the folder that it was made from.",
            ["an adapter of that folder runs on the GGUF file too:  rung run FILE --adapter DIR"],
            [f"rung convert {quoted(name_of(card.path))} FOLDER", "rung tune FOLDER DATA --out DIR"],
        )
    if options.max_length is not None and options.max_length > card.decoder.context:
        raise ContextTooLong(
            f"--max-length is {options.max_length:,}, and {card.name} holds {count(card.decoder.context, 'token')}.",
            (),
            [f"--max-length {card.decoder.context}"],
        )
    for name in ("epochs", "learning_rate", "dropout"):
        if not math.isfinite(value := getattr(options, name)):
            raise UsageError(f"--{name.replace('_', '-')} is {value}, no finite number", code="value-out-of-range")
    _check_targets(card, options.targets)
    if folder.resolve() == Path(card.path).resolve():
        raise UsageError(
            "MODEL and --out are the same folder.",
            (),
            [f"--out {quoted(f'{folder.name}-adapter')}"],
            code="output-is-input",
        )
    if not 0 <= options.eval_split < 1:
        raise UsageError(
            f"--eval-split is {options.eval_split}; it is a share of the rows",
            (),
            ["--eval-split 0.1"],
            code="value-out-of-range",
        )


def _format(card: ModelCard, options: str | None) -> str:
    """Return the format of the base while the adapter is trained. Raises ``UnknownFormat``, ``UsageError``."""
    if card.quantized:
        if options not in (None, STORED):
            raise UsageError(
                f"{card.name} was asked for in {options}, and is quantized already.",
                ["adapters are trained on what it holds, as it is stored"],
                ["leave out --format", f"rung tune ORIGINAL DATA --out DIR --format {options}"],
                code="already-quantized",
            )
        return STORED
    chosen = formats.get(options or "nf4")
    if not chosen.encodes:
        raise UsageError(
            f"rung reads {chosen.name} and does not write it",
            ["the base is held in this format while the adapter is trained"],
            ["--format nf4", "rung formats"],
            code="format-not-writable",
        )
    if short := [t for t in card.tensors if is_linear(t) and not chosen.divides(t.shape[-1])]:
        better = max((formats.next_better(chosen, t.shape[-1]) for t in short), key=lambda found: found.bits)
        raise UsageError(
            f"{chosen.name} cannot store {short[0].name}: its blocks of {chosen.block} do not divide rows of"
            f" {short[0].shape[-1]}",
            (),
            [f"--format {better.name}"],
            code="format-does-not-suit",
        )
    return options or "nf4"


def _check_targets(card: ModelCard, targets: str) -> None:
    """Raises ``UsageError`` for a name that no matrix of the model has, as PEFT finds them: by their last parts."""
    matrices = [t.name.removesuffix(".weight") for t in card.tensors if len(t.shape) > 1]
    matrices += ["lm_head"] if card.decoder.tied_head else []
    for target in () if targets == "all-linear" else names(targets):
        if not any(f".{name}".endswith(f".{target}") for name in matrices):
            known = sorted({name.rpartition(".")[2] for name in matrices})
            raise UsageError(
                f"--targets {target}: {card.name} has no such matrix.{did_you_mean(target, known)}",
                [f"it has {', '.join(known)[:200]}"],
                ["--targets all-linear"],
                code="name-unknown",
            )


def _identity(card: ModelCard, data: Path, options: Options) -> dict[str, Any]:
    """Return the values that must be equal for a run to go on."""
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    return {"model": str(Path(card.path).resolve()), "data": digest, "options": asdict(options)}


def _claim(folder: Path, identity: dict[str, Any]) -> None:
    """Makes the folder this run's. Raises ``UsageError`` for that of another run and a finished one.

    A run that ended before it had anything to keep leaves the folder to the next one, whatever its options.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path, kept = folder / STATE, _kept(folder)
        if kept and not path.is_file():
            raise UsageError(
                f"{folder} is not empty, and no run of rung tune.",
                (),
                ["--out with a new folder"],
                code="output-exists",
            )
        stored = _stored_run(path) if kept else {}
        same = stored.get("run") == identity
        if kept and (not same or stored.get("finished")):
            raise UsageError(
                f"{folder} holds {'this run, which is finished' if same else 'another run'}.",
                [] if same else ["its model, data or options differ from these"],
                [f"rung run MODEL --adapter {quoted(folder)}", "--out with another folder"],
                code="output-exists",
            )
        write_whole(path, json.dumps({"run": identity, "finished": False}, indent=1).encode())
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror or error}", (), ["--out elsewhere"], code="output-unwritable"
        ) from error


def _kept(folder: Path) -> bool:
    """Return whether a folder has anything beside the name of its run and what was left of writing it."""
    others = (each for each in folder.iterdir() if each.name != STATE and not each.name.startswith("."))
    return any(not each.is_dir() or any(each.iterdir()) for each in others)


def _stored_run(path: Path) -> dict[str, Any]:
    """The run that a folder is of. Raises ``BadFile``."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise BadFile(f"{path} is no state of rung tune", (), [f"remove {path.parent} and begin again"])
    return fields


def last_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint; later ones that were being written when the process died are removed."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    while found and not all((found[-1] / name).is_file() for name in _WHOLE):
        shutil.rmtree(found.pop())
    return found[-1] if found else None


def _split(rows: list[dict[str, list[int]]], options: Options) -> tuple[list[Any], list[Any]]:
    """Rows to train on, and rows that are held out."""
    evaluation_rows = round(options.eval_split * len(rows))
    if options.eval_split and not 0 < evaluation_rows < len(rows):
        raise UsageError(f"--eval-split {options.eval_split} of {count(len(rows), 'row')} leaves nothing on one side")
    chosen = set(random.Random(options.seed).sample(range(len(rows)), evaluation_rows))
    return [row for i, row in enumerate(rows) if i not in chosen], [rows[i] for i in sorted(chosen)]


def _train(
    card: ModelCard,
    device: Device,
    base: Any,
    training: list[Any],
    evaluation: list[Any],
    adapter: Any,
    args: Any,
    folder: Path,
    on_note: Callable[[str], None],
    on_loss: Callable[[int, int, dict[str, float]], None],
) -> Outcome:
    from rung.training.trainer import Watch, plain_loss

    with plain_loss(device), Watch(on_loss) as watch:
        trainer = _trainer(card, base, training, evaluation, adapter, args, watch)
        trainer.on_smaller = lambda before, after: on_note(
            f"out of memory: {before} → {after} rows at a time, with the same result"
        )
        begun = last_checkpoint(folder / CHECKPOINTS)
        if begun is not None:
            on_note(f"goes on after {begun.name}")
        _run(trainer, folder, begun)
    outcome = _outcome(trainer.state, folder, watch.stopped and trainer.state.global_step < trainer.state.max_steps)
    losses = {"training": outcome.losses, "held out": outcome.held_out}
    curves(folder / CURVE, losses, f"{card.name}: loss", "step", "loss")
    if not outcome.stopped:
        stored = json.loads((folder / STATE).read_text(encoding="utf-8"))
        write_whole(folder / STATE, json.dumps({**stored, "finished": True}, indent=1).encode())
    return outcome


def _trainer(
    card: ModelCard, base: Any, training: list[Any], evaluation: list[Any], adapter: Any, args: Any, watch: Watch
) -> Trainer:
    """Return TRL's trainer with the adapter on the base; the adapter says what it was made for."""
    import datasets
    from transformers.trainer_callback import PrinterCallback

    from rung.training.setup import load_tokenizer
    from rung.training.trainer import Trainer

    datasets.disable_progress_bars()
    trainer = Trainer(
        model=base,
        args=args,
        train_dataset=datasets.Dataset.from_list(training),
        eval_dataset=datasets.Dataset.from_list(evaluation) if evaluation else None,
        processing_class=load_tokenizer(card),
        peft_config=adapter,
        callbacks=[watch],
    )
    trainer.watch = watch
    trainer.remove_callback(PrinterCallback)
    adapted: Any = trainer.model
    adapted.peft_config["default"].base_model_name_or_path = card.path
    return trainer


def _run(trainer: Trainer, folder: Path, begun: Path | None) -> None:
    """Train, from the checkpoint ``begun`` on, and save the adapter, also one whose loss is NaN."""
    from rung.training.trainer import Diverged

    try:
        trainer.train(resume_from_checkpoint=None if begun is None else str(begun))
    except Diverged:
        _save(trainer, folder)
        raise
    except Exception as error:
        if _disk_full(error):
            raise _full_disk(folder, begun) from error
        raise
    _save(trainer, folder)


def _save(trainer: Any, folder: Path) -> None:
    """Save the adapter as PEFT does; each file gets its name when it is whole, the weights last."""
    try:
        with tempfile.TemporaryDirectory(prefix=".adapter-", dir=folder) as temporary:
            trainer.model.save_pretrained(temporary)
            for file in sorted(Path(temporary).iterdir(), key=lambda file: file.suffix == ".safetensors"):
                file.replace(folder / file.name)
    except Exception as error:
        if _disk_full(error):
            raise _full_disk(folder, None) from error
        raise


def _disk_full(error: BaseException) -> bool:
    """Return whether an error, of whatever library, says that there is no room on the disk."""
    return getattr(error, "errno", None) == errno.ENOSPC or "os error 28" in str(error) or "No space left" in str(error)


def _full_disk(folder: Path, begun: Path | None) -> DiskFull:
    """The error for it."""
    return DiskFull(
        f"The disk of {folder} is full.",
        [f"{size(shutil.disk_usage(folder).free)} are free", *([f"{begun.name} is whole"] if begun else [])],
        ["make room; the same command then goes on after the last whole checkpoint"],
    )


def _outcome(state: Any, folder: Path, stopped: bool) -> Outcome:
    def losses(key: str) -> tuple[tuple[int, float], ...]:
        return tuple((int(log["step"]), float(log[key])) for log in state.log_history if key in log)

    return Outcome(folder, int(state.global_step), losses("loss"), losses("eval_loss"), stopped)
