"""Low-rank adapters (LoRA, arXiv:2106.09685; rsLoRA, arXiv:2312.03732; DoRA, arXiv:2402.09353): PEFT folders and GGUF.

PEFT stores ``base_model.model.NAME.lora_A.weight`` [rank, in] and ``lora_B`` [out, rank]; GGUF files store
``NAME.lora_a`` and ``NAME.lora_b``, with the same shapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rung import formats
from rung.core.errors import BadFile, ModelNotFound, UnsafeFile, UsageError
from rung.core.text import count, quoted
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.models.files import gguf, safetensors
from rung.models.files.jsonfile import SMALL, read_object
from rung.models.files.tensors import FileTensor
from rung.models.settings import Settings

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PEFT = re.compile(r"(?P<module>.+?)\.(?P<part>lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?")
_PARTS = {"lora_A": "down", "lora_B": "up", "lora_magnitude_vector": "magnitude"}
_GGUF_PARTS = {"lora_a": "down", "lora_b": "up"}
#: Ways to begin that leave the base as it is; the others take what the adapter begins with out of it.
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True, eq=False)
class LowRank:
    """A change of a weight W [out, in]: ``W + scale * up @ down``; down [rank, in] and up [out, rank] are f32.

    With ``magnitude`` [out] (DoRA) every row of that sum is then brought to this length.
    """

    down: Floats
    up: Floats
    scale: float
    magnitude: Floats | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of the weight that it changes."""
        return len(self.up), self.down.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.down.nbytes + self.up.nbytes

    def added_to(self, rows: Floats, first: int) -> Floats:
        """The changed rows [n, in] f32 of rows [n, in] that begin at ``first``; a change of zero gives them back."""
        last = first + len(rows)
        summed: Floats = np.add(rows, np.matmul(np.multiply(self.up[first:last], np.float32(self.scale)), self.down))
        if self.magnitude is None:
            return summed
        factor = self.magnitude[first:last] / row_lengths(summed)
        return summed * factor[:, None]


def row_lengths(rows: Floats) -> Floats:
    """The Euclidean lengths [n] f32 of rows [n, in]."""
    lengths: Floats = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return lengths


@dataclass(frozen=True)
class Adapter:
    """Low-rank changes by the name of the weight in the base's files (without ``.weight``), and by their names whole
    tensors: those that were ``trained``, and the shapes of ``copies`` of the base's (PEFT saves the embedding beside a
    change of the head). ``architecture`` is that of a GGUF file, "" for PEFT; ``base`` is what the adapter says it was
    made for."""

    name: str
    architecture: str
    base: str
    changes: Mapping[str, LowRank]
    trained: Mapping[str, Floats] = field(default_factory=dict)
    copies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the low-rank changes in memory."""
        return sum(change.nbytes for change in self.changes.values())


def rank_of(changes: Mapping[str, Sequence[LowRank]]) -> int:
    """Return the highest rank of what changes a weight, 0 without any: several changes of one stand side by side."""
    return max((sum(len(each.down) for each in several) for several in changes.values()), default=0)


def read_adapter(path: str | Path, weight: float = 1.0) -> Adapter:
    """The adapter in a PEFT folder or a GGUF file, its scales times ``weight``.

    Raises ``ModelNotFound``, ``BadFile``, ``UnsafeFile`` for pickles, and ``UsageError`` for another kind of adapter.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        raise ModelNotFound(
            f"There is no adapter {folder}",
            ["an adapter is a folder that PEFT saved, or a GGUF file"],
            [f"hf download ORG/REPO --local-dir {folder.name}"],
        )
    return _gguf(folder, weight) if folder.is_file() else _peft(folder, weight)


def _bad(cause: str, facts: Sequence[str] = ()) -> BadFile:
    return BadFile(cause, facts, ["fetch the adapter again:  hf download ORG/ADAPTER --force-download"])


# ---- PEFT


def _peft(folder: Path, weight: float) -> Adapter:
    config = _read_config(folder)
    file = folder / WEIGHTS
    if not file.is_file():
        raise _no_weights(folder)
    read, copies = _sort_tensors(folder, config.texts("modules_to_save"))
    parts, trained = _read_parts(file, read)
    changes = {module: _low_rank(module, parts_of_module, config, weight) for module, parts_of_module in parts.items()}
    if not (changes or trained or copies):
        raise _bad(f"{file} holds no adapter: there is no lora_A in it")
    return Adapter(str(folder), "", str(config.raw("base_model_name_or_path") or ""), changes, trained, copies)


def _read_config(folder: Path) -> Settings:
    """Return the configuration of an adapter that rung adds; raise ``BadFile`` or ``UsageError`` for others."""
    if not (folder / CONFIG).is_file():
        raise BadFile(
            f"{folder} is no adapter: it has no {CONFIG}",
            ["it holds a whole model"] if (folder / "config.json").is_file() else [],
            [f"rung run {quoted(folder)}"]
            if (folder / "config.json").is_file()
            else ["rung tune MODEL DATA --out DIR"],
        )
    config = Settings(read_object(folder / CONFIG, SMALL), f"{folder.name}/{CONFIG}")
    _check_kind(config, folder)
    return config


def _sort_tensors(folder: Path, saved: Sequence[str]) -> tuple[tuple[FileTensor, ...], dict[str, tuple[int, ...]]]:
    """Return the tensors of the adapter, and the names and shapes of those that are copies of the base's.

    ``saved`` are the modules that were trained whole. Raise ``BadFile`` for parts that rung does not read.
    """
    read: list[FileTensor] = []
    copies: dict[str, tuple[int, ...]] = {}
    for stored in safetensors.read_header(folder / WEIGHTS):
        inner = stored.name.removeprefix(_PREFIX)
        if ".lora_" in inner and not _PEFT.fullmatch(inner):
            raise BadFile(
                f"{folder.name}: {stored.name} is a part of an adapter that rung does not read",
                ["rung reads lora_A, lora_B and lora_magnitude_vector of linear layers"],
                [WITH_PEFT],
            )
        if ".lora_" in inner or inner.endswith(".bias") or any(f".{module}." in f".{inner}" for module in saved):
            read.append(stored)
        else:
            copies[inner.replace(".base_layer.", ".")] = stored.shape
    return tuple(read), copies


def _read_parts(file: Path, tensors: tuple[FileTensor, ...]) -> tuple[dict[str, dict[str, Floats]], dict[str, Floats]]:
    """Return the matrices of each changed module by their parts, and the tensors that were trained whole."""
    parts: dict[str, dict[str, Floats]] = {}
    trained: dict[str, Floats] = {}
    for name, values in _values(file, tensors):
        inner = name.removeprefix(_PREFIX)
        found = _PEFT.fullmatch(inner)
        if found:
            parts.setdefault(found["module"], {})[_PARTS[found["part"]]] = values
        else:
            trained[inner.replace(".base_layer.", ".")] = values
    return parts, trained


WITH_PEFT = "merge it with PEFT:  PeftModel.from_pretrained(model, DIR).merge_and_unload().save_pretrained(OUT)"


def _check_kind(config: Settings, folder: Path) -> None:
    kind = config.text("peft_type", "LORA")
    if kind != "LORA":
        apart = kind == "ADAPTION_PROMPT" or config.raw("num_virtual_tokens") is not None
        raise UsageError(
            f"{folder.name} is an adapter of the kind {kind[:40]}; rung adds LoRA, rsLoRA and DoRA",
            ["it is no change of weights, so it cannot be merged either"] if apart else (),
            ["run it in PEFT:  PeftModel.from_pretrained(model, DIR).generate(...)" if apart else WITH_PEFT],
            code="adapter-unsupported",
        )
    start = config.raw("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise UsageError(
            f"{folder.name} began with {str(start)[:40]}, which changes the weights of the base as well",
            ["its saved form is no change to the base that you have"],
            ['save it as a plain LoRA:  model.save_pretrained(OUT, path_initial_model_for_weight_conversion="FIRST")'],
            code="adapter-unsupported",
        )


def _no_weights(folder: Path) -> BadFile | UnsafeFile:
    if (folder / "adapter_model.bin").is_file():
        return UnsafeFile(
            f"{folder.name} has its weights only as a pickle, which can run code when it is read.",
            ["adapter_model.bin"],
            ["convert it where you trust it:  PeftModel.from_pretrained(model, DIR).save_pretrained(OUT)"],
        )
    return _bad(f"{folder} has {CONFIG} and no {WEIGHTS}", ["saving it was interrupted, or the copy is not whole"])


def _low_rank(module: str, parts: Mapping[str, Floats], config: Settings, weight: float) -> LowRank:
    rank = _patterned(config, "rank_pattern", module) or config.integer("r")
    alpha = _patterned(config, "alpha_pattern", module) or config.raw("lora_alpha", 8)
    change = _change(config.where, module, parts)
    current_rank = len(change.down)
    if current_rank != rank:
        raise _bad(
            f"{config.where} says rank {rank}, and lora_A of {module} has {current_rank}",
            ["the description and the weights belong to different adapters, or the file has been changed"],
        )
    if config.flag("use_dora", False) != (change.magnitude is not None):
        raise _bad(f"{config.where}: use_dora contradicts the tensors of {module}")
    root = math.sqrt(rank) if config.flag("use_rslora", False) else rank
    scale = weight * Settings({"lora_alpha": alpha}, config.where).number("lora_alpha") / root
    return LowRank(change.down, change.up, scale, change.magnitude)


def _patterned(config: Settings, key: str, module: str) -> Any:
    """The value of the pattern that matches a module's name as PEFT matches it: the last parts of the name."""
    for pattern, value in config.table(key).items():
        try:
            found = re.match(rf"(?:.*\.)?(?:{pattern})$", module)
        except re.error as error:
            raise config.bad(key, pattern, "a pattern") from error
        if found:
            return value
    return None


def _change(where: str, module: str, parts: Mapping[str, Floats]) -> LowRank:
    """Both factors, checked against each other."""
    missing = [part for part in ("down", "up") if part not in parts]
    if missing:
        raise _bad(f"{where}: one of the two matrices of {module} is missing")
    down, up, magnitude = parts["down"], parts["up"], parts.get("magnitude")
    if down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
        raise _bad(f"{where}: the matrices of {module}, {list(down.shape)} and {list(up.shape)}, do not fit")
    if magnitude is not None:
        magnitude = magnitude.reshape(-1)
        if len(magnitude) != len(up):
            raise _bad(f"{where}: {module} has {len(magnitude)} magnitudes for {len(up)} rows")
    return LowRank(down, up, 1.0, magnitude)


# ---- GGUF


def _gguf(path: Path, weight: float) -> Adapter:
    header = gguf.read_header(path)
    meta = Settings(header.metadata, path.name)
    if meta.text("general.type", "model") != "adapter":
        raise BadFile(f"{path.name} is a model and no adapter", (), [f"rung run {quoted(path)}"])
    if meta.text("adapter.type", "lora") != "lora":
        raise UsageError(
            f"{path.name} is an adapter of the kind {meta.text('adapter.type')[:40]}; rung adds LoRA",
            code="adapter-unsupported",
        )
    alpha = meta.number("adapter.lora.alpha") if meta.raw("adapter.lora.alpha", 0) != 0 else 0.0
    parts: dict[str, dict[str, Floats]] = {}
    for name, values in _values(path, header.tensors):
        module, _, part = name.rpartition(".")
        if part not in _GGUF_PARTS:
            raise _bad(f"{path.name}: tensor {name} is no part of an adapter")
        parts.setdefault(module.removesuffix(".weight"), {})[_GGUF_PARTS[part]] = values
    changes = {}
    for module, found in parts.items():
        change = _change(path.name, module, found)
        scale = weight * (alpha / len(change.down) if alpha else 1.0)
        changes[module] = LowRank(change.down, change.up, scale)
    base = str(header.metadata.get("general.base_model.0.name", ""))
    return Adapter(str(path), meta.text("general.architecture"), base, changes)


def _values(path: Path, tensors: tuple[FileTensor, ...]) -> Iterator[tuple[str, Floats]]:
    """Every tensor with its name, decoded. Raises ``BadFile`` for NaN, Inf and types that rung does not read."""
    with open(path, "rb") as file:
        for stored in tensors:
            if not stored.known:
                raise _bad(f"{path.name}: tensor {stored.name} is stored as {stored.format}")
            file.seek(stored.offset)
            rows = math.prod(stored.shape[:-1])
            data = np.frombuffer(file.read(stored.bytes), np.uint8).reshape(rows, -1)
            shape = (rows, stored.shape[-1] if stored.shape else 1)
            values = formats.decode(Encoded(formats.get(stored.format), shape, {"data": data}))
            if not np.isfinite(values).all():
                raise BadFile(
                    f"{path.name}: {stored.name} holds NaN or Inf",
                    ["the training that made it had diverged, or the file is damaged"],
                    ["take an earlier checkpoint of it"],
                    code="values-not-finite",
                )
            yield stored.name, values.reshape(stored.shape)


def other_base(adapter: Adapter, name: str, wrong: list[str]) -> UsageError:
    """The error for an adapter of which ``wrong`` says what does not fit the model ``name``."""
    stated = f" It says: {adapter.base}." if adapter.base else ""
    return UsageError(
        f"{adapter.name} was made for another model than {name}.{stated}",
        [*wrong[:4], *([f"and {count(len(wrong) - 4, 'tensor')} more"] if len(wrong) > 4 else [])],
        [f"rung run {quoted(adapter.base or 'BASE')} --adapter {quoted(adapter.name)}"],
        code="made-for-another-model",
    )
