"""The files of a folder beside its weights: copied from one, or made of a GGUF file's metadata."""

from __future__ import annotations

from pathlib import Path

from rung.conversion.job import Entry
from rung.models.card import ModelCard
from rung.models.files.jsonfile import read_bounded

#: What belongs to a model beside its weights and its config.json.
_BESIDE = (
    *("generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "added_tokens.json"),
    *("special_tokens_map.json", "chat_template.jinja", "chat_template.json", "merges.txt", "vocab.json"),
    *("preprocessor_config.json", "processor_config.json"),
)
_LARGEST = 128 * 2**20


def copied(folder: Path) -> dict[str, bytes]:
    """The files of a folder that its model needs beside the weights, without config.json."""
    return {name: read_bounded(folder / name, _LARGEST) for name in companion_files(folder)}


def companion_files(folder: Path) -> list[str]:
    """Their names."""
    return [name for name in _BESIDE if (folder / name).is_file()]


def constants(card: ModelCard) -> tuple[tuple[Entry, bytes], ...]:
    """The divisors of frequencies that a GGUF file holds as tensors, which no card lists."""
    from rung.models.architectures.family import FREQUENCY_TENSORS
    from rung.models.files.gguf import read_header

    found = []
    for path in card.files:
        for stored in read_header(Path(path)).tensors:
            if stored.name in FREQUENCY_TENSORS:
                with open(path, "rb") as file:
                    file.seek(stored.offset)
                    entry = Entry(stored.name, stored.format, stored.shape, stored.bytes)
                    found.append((entry, file.read(stored.bytes)))
    return tuple(found)
