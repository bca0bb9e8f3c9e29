"""Checkpoints of PyTorch (``.bin``, ``.pt``, ``.ckpt``) as folders of safetensors.

They are pickles, so they are read in a child process and by ``torch.load(weights_only=True)``, which builds tensors
and nothing else. Gemma PyTorch's files get transformers' names and a configuration; others keep their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rung.conversion import gemma_pytorch
from rung.conversion.folder_config import companion_files, copied
from rung.conversion.job import Entry, folder_layout, index_of
from rung.conversion.resumable_writer import Partial, check_new
from rung.core import errors
from rung.core.errors import BadFile, RungError, SoftwareMissing, UnsafeFile
from rung.core.files import state_of
from rung.core.text import count, quoted
from rung.models.files.file_sniffing import PICKLE_SUFFIXES, describe, head, is_pickle
from rung.models.files.jsonfile import read_object
from rung.run.worker import Job, run

#: Under which key a training program keeps the weights.
_WRAPPED = ("model_state_dict", "state_dict", "model", "module")
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_DAY = 86400.0


def pickles_of(source: Path) -> list[Path]:
    """The pickles that a file is, or that the weights of a folder are where it has no safetensors; else none.

    Raises ``BadFile`` for a file that is named as one and is nothing known.
    """
    if source.is_file():
        first = head(source)
        if source.suffix in PICKLE_SUFFIXES and not describe(first):
            facts = [f"its first bytes are {first[:8].hex(' ')}: neither a pickle nor an archive of one begins so"]
            raise BadFile(f"{source.name} is no checkpoint of PyTorch", facts)
        return [source] if is_pickle(first) else []
    if not source.is_dir() or any(source.glob("*.safetensors")):
        return []
    found = sorted(path for suffix in PICKLE_SUFFIXES for path in source.glob(f"*{suffix}"))
    # beside them a training program keeps its arguments, its optimizer, its random numbers
    return [path for path in found if path.name.startswith("pytorch_model")] or found


def state(source: Path) -> str:
    """A hash that is another one when a checkpoint or what lies beside it has changed."""
    folder = source if source.is_dir() else source.parent
    return state_of(
        [
            *pickles_of(source),
            *(folder / name for name in (*companion_files(folder), "config.json") if (folder / name).is_file()),
        ]
    )


def unpickled(source: Path, target: Path) -> dict[str, int]:
    """Makes a folder of safetensors of a checkpoint, in a child; returns the number of ``tensors`` and their ``bytes``.

    Raises ``UnsafeFile`` for a pickle of more than weights, ``BadFile``, ``SoftwareMissing`` without torch,
    ``UsageError`` where the target is there already, and ``DiskFull``.
    """
    check_new(target)
    job = Job.of("rung.conversion.pickles:work", source=str(source), target=str(target))
    (outcome,) = run([job], _DAY)
    if outcome.ok and "refused" in outcome.value:
        refused: type[RungError] = getattr(errors, outcome.value["refused"])
        raise refused(outcome.value["cause"], outcome.value["facts"], outcome.value["ways"], code=outcome.value["code"])
    if outcome.ok:
        counts: dict[str, int] = outcome.value
        return counts
    if "ModuleNotFoundError" in outcome.error:
        raise SoftwareMissing("Reading a checkpoint of PyTorch needs torch.", (), ["pip install 'rung[run]'"])
    if "UnpicklingError" in outcome.error:
        raise UnsafeFile(
            f"{source.name} holds more than weights, and reading the rest could run code",
            [outcome.error.splitlines()[0][:200]],
            ["take a safetensors or GGUF version of the model:  rung run ORG/REPO"],
        )
    raise BadFile(f"{source.name} could not be converted: {outcome.error[:600]}")


def work(source: str, target: str) -> dict[str, Any]:
    """The child's part: what ``unpickled`` returns, or what is to be raised; raises what torch raises."""
    try:
        return _converted(Path(source), Path(target))
    except RungError as error:
        failure = {"cause": error.cause, "facts": list(error.facts), "ways": list(error.ways_out), "code": error.code}
        return {"refused": type(error).__name__, **failure}


def _converted(source: Path, target: Path) -> dict[str, int]:
    folder = source if source.is_dir() else source.parent
    tensors: dict[str, Any] = {}
    for path in pickles_of(source):
        tensors |= _read(path)
    small = copied(folder)
    if gemma_pytorch.recognized(tensors):
        config, tensors = gemma_pytorch.translated(tensors)
        small = gemma_pytorch.TOKENIZER_FILES | small
    elif (folder / "config.json").is_file():
        config = read_object(folder / "config.json")
    else:
        raise BadFile(
            f"{source.name} has no config.json beside it, so nothing says what its tensors are",
            [f"it holds {count(len(tensors), 'tensor')}, {', '.join(list(tensors)[:3])} among them"],
            [f"put the config.json of its model into {quoted(folder.absolute())}"],
        )
    _untie(tensors, config)
    small["config.json"] = json.dumps(config, indent=2).encode()
    return _write(tensors, target, small, state(source))


def _read(path: Path) -> dict[str, Any]:
    """The tensors of one file by name, mapped where the file allows it."""
    import zipfile

    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    for key in _WRAPPED:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(isinstance(name, str) for name in loaded):
        raise BadFile(f"{path.name} holds a {type(loaded).__name__}, not tensors by their names")
    found = {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    if not found:
        raise BadFile(f"{path.name} holds no tensors")
    return {name: value.detach() for name, value in found.items()}


def _untie(tensors: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Leaves out a head that is the embedding, and what everybody computes."""
    for name in [name for name in tensors if name.endswith("rotary_emb.inv_freq")]:
        del tensors[name]
    if config.get("tie_word_embeddings") and "lm_head.weight" in tensors and len(tensors) > 1:
        del tensors["lm_head.weight"]


def _write(tensors: Mapping[str, Any], target: Path, small: Mapping[str, bytes], work: str) -> dict[str, int]:
    import torch

    entries = []
    for name, value in tensors.items():
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise BadFile(f"{name} is a tensor of {dtype}; weights are float32, float16 or bfloat16")
        entries.append(Entry(name, _DTYPES[dtype], tuple(value.shape), value.numel() * value.element_size()))
    files, places = folder_layout(entries)
    with Partial(target, files, work) as partial:
        for number, (name, value) in enumerate(tensors.items()):
            if number not in partial.done and value.numel():
                data = value.contiguous().reshape(-1).view(torch.uint8).numpy()
                partial.put(*places[name], data)
                partial.record(number, {})
        partial.finish({**small, **index_of(files, places)})
    return {"tensors": len(entries), "bytes": sum(entry.bytes for entry in entries)}
