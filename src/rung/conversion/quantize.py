"""Makes the job of ``rung quantize``: which tensor gets which format, and whose file it becomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rung import formats
from rung.conversion import checkpoint_layouts, folder_config, gguf_keys
from rung.conversion.checkpoint_layouts import (
    DTYPES,
    PACKED_BITS,
    PACKED_GROUP,
    Bitsandbytes,
    CompressedTensors,
    Gguf,
    Gptq,
    Plain,
    Rung,
    lossless,
)
from rung.conversion.job import Job, Step, Style
from rung.conversion.tokenizers import vocabulary
from rung.core.errors import UsageError
from rung.core.text import did_you_mean, matches, quoted
from rung.core.types import Format
from rung.models.card import ModelCard, Tensor
from rung.models.checkpoints import OWN
from rung.models.checkpoints.bitsandbytes import OUTLIERS
from rung.models.files import gguf as gguf_file
from rung.models.files.gguf import pair
from rung.models.lookup import name_of
from rung.models.settings import Settings, quantization
from rung.planning.gguf_mixtures import Mixture, storage
from rung.planning.network_spec import Subject
from rung.planning.weight_plan import format_of, is_linear
from rung.quantization import imatrix

KINDS = ("rung", "gguf", "bitsandbytes", "gptq", "compressed-tensors")
#: Those whose weights are symmetric codes of 4 or 8 bits.
PACKED_FOLDERS = ("gptq", "compressed-tensors")
#: Kinds of folders whose embeddings and heads stay as they are where a format is asked for.
_LINEAR_ONLY = ("rung", "bitsandbytes", *PACKED_FOLDERS)
#: Keys of a GGUF file that are said anew.
#: Metadata that are true of the source alone.
_OF_SOURCE = "rung.quantization."
_REPLACED = ("general.file_type", "general.quantization_version", "general.alignment")
_OF_SPLITS = "split."


def kind_of(target: Path, requested: str | None) -> str:
    """Whose file it becomes: as asked, else GGUF for a name that ends so and rung's folder for others.

    Raises ``UsageError`` for a kind that there is none of, and for a name that says something else.
    """
    if requested is not None and requested not in KINDS:
        raise UsageError(
            f"--as {requested}: there is no such kind.{did_you_mean(requested, KINDS)}",
            [f"it is one of {', '.join(KINDS)}"],
            code="name-unknown",
        )
    named = target.suffix.lower() == ".gguf"
    if requested not in (None, "gguf") and named:
        raise UsageError(
            f"{target.name} is the name of a GGUF file, and --as {requested} makes a folder",
            (),
            [f"{target.with_suffix('')} as DST", "leave out --as"],
        )
    return requested or ("gguf" if named else "rung")


def parse_keep(options: Sequence[str]) -> dict[str, Format]:
    """``lm_head=q6_k`` ... as patterns and formats. Raises ``UsageError``, ``UnknownFormat``."""
    found = {}
    for each in options:
        pattern, equals, name = each.partition("=")
        if not equals or not pattern or not name:
            raise UsageError(
                f"--keep {each}: write PATTERN=FORMAT", (), ["--keep lm_head=q6_k", "--keep '*down_proj=q8_0'"]
            )
        found[pattern] = formats.get(name)
    return found


#: Whether the matrix of a role can be written in a format by other ways than the plain encoders.
Takes = Callable[[str, Format], bool]


def quantizing(
    card: ModelCard, kind: str, format: str, keep: Mapping[str, Format], takes: Takes = lambda role, fmt: False
) -> Job:
    """The job that stores a model in a format or mixture, as ``kind``'s file.

    ``takes`` says which formats the rounder of the job writes beside those that encode.

    Raises ``UsageError`` for formats that the kind of file cannot hold or rung does not write, rows that blocks do not
    divide (where nothing finer was chosen), a pattern of ``keep`` that matches nothing; ``UnknownFormat``;
    ``UnknownArchitecture``; ``BadFile``.
    """
    requested = storage(format)
    if kind != "gguf" and isinstance(requested, Format) and lossless(requested):
        raise UsageError(
            f"{requested.name} is no quantized format",
            (),
            [f"rung convert {quoted(name_of(card.path))} DST --format {requested.name}"],
        )
    base = requested.base if isinstance(requested, Mixture) else requested
    if not base.encodes and not any(tensor.format == base.name or takes(tensor.role, base) for tensor in card.tensors):
        raise _read_only(base, f"{card.name} would be stored in it")
    _check_patterns(card, keep)
    subject = Subject.of_card(card)
    chosen = {tensor.role: _chosen(card, subject, tensor, kind, requested, keep) for tensor in card.tensors}
    _check(card, kind, chosen, takes)
    notes = (*_notes(card, chosen), *_undivided(requested, chosen))
    if kind == "gguf":
        return to_gguf(card, requested, chosen, notes)
    return to_folder(card, kind, requested, chosen, notes)


def to_gguf(
    card: ModelCard, requested: Format | Mixture, chosen: Mapping[str, tuple[Format, str]], notes: tuple[str, ...]
) -> Job:
    """One GGUF file; its metadata is the source's own, or made of the folder."""
    if card.kind == "gguf":
        pairs = tuple(
            data
            for path in card.files[:1]
            for key, data in gguf_file.raw_pairs(Path(path)).items()
            if key not in _REPLACED and not key.startswith((_OF_SPLITS, _OF_SOURCE))
        )
        own = {"general.file_type": gguf_keys.file_type(requested), "general.quantization_version": 2}
        pairs += tuple(pair(key, value) for key, value in own.items())
        steps = tuple(_step(tensor, tensor.name, chosen) for tensor in card.tensors)
        return Job(card, steps, Gguf(), True, folder_config.constants(card), pairs, notes=notes)
    metadata, constants = gguf_keys.keys(card, requested)
    notes += gguf_keys.unsaid(card, metadata, constants)
    metadata |= vocabulary.tokenizer_keys(card)
    if not card.tokenizer:
        notes += ("the folder has no tokenizer, so the file has none either",)
    named = checkpoint_layouts.gguf_names(card)
    steps = tuple(_turned(card, tensor, named[tensor.role], chosen, interleave=True) for tensor in card.tensors)
    return Job(card, steps, Gguf(), True, tuple(constants), gguf_keys.pairs(metadata), notes=notes)


def to_folder(
    card: ModelCard,
    kind: str,
    requested: Format | Mixture,
    chosen: Mapping[str, tuple[Format, str]],
    notes: tuple[str, ...],
) -> Job:
    """A folder of safetensors; its other files are the source's own, or made of the GGUF file's metadata."""
    if card.kind == "folder":
        named = checkpoint_layouts.folder_names(card)
        steps = tuple(_step(tensor, named[tensor.role], chosen) for tensor in card.tensors)
        config, small = dict(card.metadata), folder_config.copied(Path(card.path))
    else:
        config, small, unsaved = folder_config.folder_files(card, plain_dtype(card))
        notes += unsaved
        named = checkpoint_layouts.folder_names(card, Settings(config, "config.json"))
        steps = tuple(_turned(card, tensor, named[tensor.role], chosen, interleave=False) for tensor in card.tensors)
    style: Style = {
        "plain": Plain,
        "rung": Rung,
        "bitsandbytes": Bitsandbytes,
        "gptq": Gptq,
        "compressed-tensors": CompressedTensors,
    }[kind]()
    for key in ("quantization_config", "compression_config"):  # the source's; what is written says its own
        config.pop(key, None)
    config |= _config_of(kind, card, requested, steps)
    if kind == "plain":
        config.pop("torch_dtype", None)
        config["dtype"] = folder_config.TORCH[requested.name]
    text = json.dumps(config, indent=2, ensure_ascii=False).encode()
    return Job(card, steps, style, False, small=small | {"config.json": text}, notes=notes)


def _step(tensor: Tensor, name: str, chosen: Mapping[str, tuple[Format, str]]) -> Step:
    format, reason = chosen[tensor.role]
    return Step(tensor, name, format, reason=reason)


def _turned(
    card: ModelCard, tensor: Tensor, name: str, chosen: Mapping[str, tuple[Format, str]], interleave: bool
) -> Step:
    format, reason = chosen[tensor.role]
    heads, shift = checkpoint_layouts.heads_of(card, tensor), checkpoint_layouts.shift_of(card, tensor)
    return Step(tensor, name, format, heads, interleave, shift, reason)


def weighed(job: Job, path: Path) -> Job:
    """The same job with importance data of llama.cpp, for the formats that look at them.

    Raises ``BadFile`` for data of another model, ``UsageError`` where no format of the job looks at them.
    """
    steps = [step for step in job.steps if formats.weighs(step.format) and len(step.tensor.shape) > 1]
    if not steps:
        raise UsageError(
            "No format that was chosen looks at importance data.",
            ["q4_k, q5_k and q6_k do, and the mixtures of them"],
            ["leave out --importance, or take --format q4_k_m"],
        )
    named = checkpoint_layouts.gguf_names(job.card)
    found = imatrix.by_role(
        imatrix.read(path),
        {step.tensor.role: named[step.tensor.role] for step in steps},
        {step.tensor.role: step.tensor.shape[-1] for step in steps},
    )
    without = [step.tensor.name for step in steps if step.tensor.role not in found]
    note = (
        (f"without importance data: {', '.join(without[:4])}{' ...' if len(without) > 4 else ''}",) if without else ()
    )
    return replace(job, importance=found, notes=job.notes + note)


# ---- formats


def _chosen(
    card: ModelCard,
    subject: Subject,
    tensor: Tensor,
    kind: str,
    requested: Format | Mixture,
    keep: Mapping[str, Format],
) -> tuple[Format, str]:
    """The format of a tensor, with the reason where it is another than the one asked for."""
    if len(tensor.shape) < 2 or tensor.shape[0] == 1:
        plain = "f32" if kind == "gguf" else plain_dtype(card) if card.kind == "gguf" else tensor.format
        return formats.get(plain), ""
    for pattern, format in keep.items():
        if any(matches(name, pattern) for name in checkpoint_layouts.aliases(card, tensor)):
            return format, f"--keep {pattern}"
    if kind in _LINEAR_ONLY and not is_linear(tensor) and isinstance(requested, Format):
        stays = plain_dtype(card) if card.kind == "gguf" else tensor.format
        return formats.get(stays), "embeddings and heads stay as they are"
    return format_of(subject, tensor, requested)


def plain_dtype(card: ModelCard) -> str:
    """The float in which a folder made of a GGUF file stores what is not quantized: the file's own, else bf16."""
    stored = [tensor.format for tensor in card.tensors if len(tensor.shape) > 1]
    return max(set(stored), key=stored.count) if set(stored) <= DTYPES.keys() else "bf16"


def _check_patterns(card: ModelCard, keep: Mapping[str, Format]) -> None:
    listed = [tensor for tensor in card.tensors if len(tensor.shape) > 1]
    known = [name for tensor in listed for name in checkpoint_layouts.aliases(card, tensor)]
    stored = (name.removesuffix(".weight") for name in checkpoint_layouts.folder_names(card).values())
    for pattern in keep:
        if not any(matches(name, pattern) for name in known):
            raise UsageError(
                f"--keep {pattern} matches no matrix of {card.name}.{did_you_mean(pattern, known)}",
                [f"{', '.join(stored)[:160]} ..."],
                ["write a name, whole parts of one, or a pattern with * and ?"],
                code="name-unknown",
            )


def _check(card: ModelCard, kind: str, chosen: Mapping[str, tuple[Format, str]], takes: Takes) -> None:
    for tensor in card.tensors:
        format = chosen[tensor.role][0]
        if not format.encodes and format.name != tensor.format and not takes(tensor.role, format):
            raise _read_only(format, f"{tensor.name} would be stored in it")
        if kind == "gguf" and formats.gguf_number(format) is None:
            raise UsageError(
                f"GGUF files hold no {format.name}",
                (),
                ["--format q4_k", "a DST that does not end in .gguf, with --as rung: a folder, which holds it"],
                code="format-does-not-suit",
            )
        if kind == "bitsandbytes" and not (lossless(format) or format.name == "int8" or format.family == "codebook4"):
            raise UsageError(
                f"bitsandbytes has no {format.name}; {tensor.name} would be stored in it",
                (),
                ["--format nf4, --format nf4:64:nested, --format fp4, --format int8", "--as rung"],
                code="format-does-not-suit",
            )
        if kind in PACKED_FOLDERS:
            _check_packed(kind, tensor, format)
        if not format.divides(tensor.shape[-1]):
            raise UsageError(
                f"{format.name} cannot store {tensor.name}: its blocks of {format.block} do not divide rows of "
                f"{tensor.shape[-1]}",
                (),
                [f"--keep {tensor.name.removesuffix('.weight')}={formats.next_better(format, tensor.shape[-1]).name}"],
                code="format-does-not-suit",
            )


def _check_packed(kind: str, tensor: Tensor, format: Format) -> None:
    """Raise ``UsageError`` for a tensor that a folder of GPTQ or compressed-tensors does not hold in a format."""
    if lossless(format):
        if kind == "gptq" and is_linear(tensor) and len(tensor.shape) > 1:
            raise UsageError(
                f"A folder of GPTQ has all linear layers in one format; {tensor.name} would be in {format.name}",
                [f"its rows have {tensor.shape[-1]} columns, and {PACKED_GROUP} share a scale"],
                ["--as compressed-tensors", "--as rung"],
                code="format-does-not-suit",
            )
        return
    if format.name not in PACKED_BITS or not is_linear(tensor):
        what = "holds no" if format.name not in PACKED_BITS else "leaves embeddings and heads as they are, and not in"
        raise UsageError(
            f"A folder of {kind} {what} {format.name}; {tensor.name} would be stored in it",
            ["rung writes its symmetric codes of 4 and 8 bits with a scale for 32 columns: q4_0 and q8_0 to the bit"],
            ["--format q4_0", "--format q8_0", "--as rung"],
            code="format-does-not-suit",
        )
    if kind == "gptq" and tensor.shape[0] % (32 // PACKED_BITS[format.name]):
        raise UsageError(
            f"GPTQ packs the zero points of {32 // PACKED_BITS[format.name]} rows; {tensor.name} has {tensor.shape[0]}",
            (),
            ["--as compressed-tensors", "--as rung"],
            code="format-does-not-suit",
        )


def _read_only(format: Format, fact: str) -> UsageError:
    return UsageError(
        f"rung reads {format.name} and does not write it; {fact}",
        (),
        ["rung formats   # those without 'read only' are written", "--format q4_k_m, --format q8_0"],
        code="format-not-writable",
    )


def _notes(card: ModelCard, chosen: Mapping[str, tuple[Format, str]]) -> tuple[str, ...]:
    """A word about quantizing what is quantized."""
    twice = sorted(
        {
            tensor.format
            for tensor in card.tensors
            if tensor.format not in DTYPES and chosen[tensor.role][0].name != tensor.format
        }
    )
    if not twice:
        return ()
    return (
        f"{card.name} is quantized already ({', '.join(twice)}): what was lost then stays lost, and the errors below"
        " come on top of it",
    )


def _undivided(requested: Format | Mixture, chosen: Mapping[str, tuple[Format, str]]) -> tuple[str, ...]:
    """A word about matrices whose rows are no whole blocks of the format that was asked for."""
    if isinstance(requested, Mixture):
        return ()
    found = [format.name for format, reason in chosen.values() if reason.startswith(f"{format.name}: blocks of ")]
    if not found:
        return ()
    matrices = f"{len(found)} matrices" if len(found) > 1 else "a matrix"
    names = ", ".join(sorted(set(found)))
    return (f"{matrices} in {names}, the next better format: blocks of {requested.block} do not divide their rows",)


# ---- configurations


def _config_of(kind: str, card: ModelCard, requested: Format | Mixture, steps: Sequence[Step]) -> dict[str, Any]:
    """``quantization_config`` for transformers."""
    base = requested.base if isinstance(requested, Mixture) else requested
    linear = [step for step in steps if len(step.tensor.shape) > 1]
    plain = [_module(step) for step in linear if lossless(step.format) and is_linear(step.tensor)]
    if kind == "rung":
        other = {
            _module(step): step.format.name
            for step in linear
            if not lossless(step.format) and (step.format != base or not is_linear(step.tensor))
        }
        if "model.embed_tokens" in other and card.decoder.tied_head:
            other["lm_head"] = other["model.embed_tokens"]
        config = {"quant_method": "rung", "format": base.name, "skip": plain, "embeddings": None, "compute_dtype": None}
        return {"quantization_config": config | ({"keep": other} if other else {}) | _computing(card, steps)}
    if kind == "bitsandbytes":
        return {"quantization_config": _bitsandbytes_config(base, plain, card)}
    if kind == "gptq":
        return {"quantization_config": _gptq_config(linear)}
    if kind == "compressed-tensors":
        return {"quantization_config": _compressed_config(linear, [] if card.decoder.tied_head else ["lm_head"])}
    return {}


def _computing(card: ModelCard, steps: Sequence[Step]) -> dict[str, Any]:
    """Return the compute settings of a quantized source, where every weight stays in the format it has."""
    own = quantization(Settings(card.metadata, "config.json")) or {}
    if any(step.format.name != step.tensor.format for step in steps):
        return {}
    if card.quantized == "bitsandbytes" and own.get("load_in_8bit"):
        return {"threshold": own.get("llm_int8_threshold", OUTLIERS)}
    return {key: own[key] for key in ("compute_dtype", "threshold") if card.quantized == OWN and key in own}


def _bitsandbytes_config(base: Format, plain: list[str], card: ModelCard) -> dict[str, Any]:
    config: dict[str, Any] = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": base.family == "codebook4",
        "load_in_8bit": base.name == "int8",
        "llm_int8_skip_modules": [*plain, *([] if card.decoder.tied_head else ["lm_head"])] or None,
    }
    if base.family == "codebook4":
        dtype = {"f32": "float32", "f16": "float16"}.get(plain_dtype(card), "bfloat16")
        config |= {
            "bnb_4bit_quant_type": base.name.split(":")[0],
            "bnb_4bit_use_double_quant": base.nested,
            "bnb_4bit_compute_dtype": dtype,
            "bnb_4bit_quant_storage": "uint8",
        }
    return config


def _packed_bits(kind: str, linear: Sequence[Step]) -> int:
    """Return the bits of all quantized layers. Raises ``UsageError`` for several, or none.

    compressed-tensors may have groups of several bits, but transformers decodes all with those of the first.
    """
    found = sorted({step.format.name for step in linear if step.format.name in PACKED_BITS})
    if len(found) != 1:
        raise UsageError(
            f"A folder of {kind} has all linear layers in one format, not in {' and '.join(found) or 'none'}",
            (),
            ["--as rung", "leave out --keep"],
            code="format-does-not-suit",
        )
    return PACKED_BITS[found[0]]


def _gptq_config(linear: Sequence[Step]) -> dict[str, Any]:
    """Return the config that GPTQ's packages read."""
    return {
        "quant_method": "gptq",
        "bits": _packed_bits("gptq", linear),
        "group_size": PACKED_GROUP,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
        "checkpoint_format": "gptq",
    }


def _compressed_config(linear: Sequence[Step], head: list[str]) -> dict[str, Any]:
    """Return the config that compressed-tensors reads; layers that stay plain are ignored."""
    weights = {
        "num_bits": _packed_bits("compressed-tensors", linear),
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": PACKED_GROUP,
    }
    plain = [_module(step) for step in linear if lossless(step.format) and is_linear(step.tensor)]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [*plain, *head],
    }


def _module(step: Step) -> str:
    return step.name.removesuffix(".weight")
