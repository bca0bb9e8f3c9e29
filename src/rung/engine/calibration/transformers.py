"""Measure what ``rung calibrate`` measures of networks that transformers builds: all that a token takes there beside
weights.

Tiny networks of random weights, in rung's layers, as ``rung.engine.transformers_decoder`` runs them: a dense one, a
mixture of experts, and one of usual width that reads a prompt.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from rung.core.types import Device
from rung.kernels.gpu.dtypes import TORCH_DTYPE
from rung.models.decoder_memory import CHUNK
from rung.nn.quantize import quantize
from rung.nn.quantized.packed import pack
from rung.planning.speed import values_between
from rung.planning.weight_plan import compute_dtype
from rung.run.torch_device import torch_name

_LAYERS, _CHOSEN, _TOKENS, _TURNS = 12, 2, 24, 3
_NARROW = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": _LAYERS, "num_attention_heads": 4}
_WIDE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 16}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": _CHOSEN}
#: The format of all that is measured.
FORMAT = "q8_0"


def can_measure() -> bool:
    """Return whether transformers is there."""
    return find_spec("transformers") is not None


def seconds(device: Device, undisturbed: Callable[[Callable[[], float]], float]) -> dict[str, float]:
    """Return the rates of a token of a dense network and of a mixture, and of a chunk of a prompt; measured through
    ``undisturbed``."""
    found = {}
    for name, kind, size in (("dense", "Llama", _NARROW), ("mixture", "Mixtral", _NARROW | _EXPERTS)):
        found[name] = undisturbed(partial(_token, _network(kind, size, device)))
    found["borrowed"] = undisturbed(partial(_chunk, _network("Llama", _WIDE, device)))
    return found


def rates(seconds: Mapping[str, float], many: float, attention: float) -> dict[str, float]:
    """Rates as ``rung.planning.speed`` names them, of such seconds.

    ``many``: operations a second of linears with many rows, ``attention``: of attention.
    """
    layer = seconds["dense"] / _LAYERS
    expert = (seconds["mixture"] - seconds["dense"]) / _LAYERS / _CHOSEN
    hidden, wide, layers = (_WIDE[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    multiplied = 2 * CHUNK * layers * (4 * hidden * hidden + 3 * hidden * wide)
    attended = 2 * CHUNK * CHUNK * hidden * layers  # each sees half of the others
    remaining = max(seconds["borrowed"] - multiplied / many - attended / attention, seconds["borrowed"] / 50)
    return {
        "layer transformers": layer,
        "expert transformers": max(expert, layer / 10),
        "values transformers": CHUNK * values_between(layers, hidden, wide) / remaining,
    }


def _network(kind: str, size: Mapping[str, int], device: Device) -> Any:
    from rung.hub.networks import attention
    from rung.hub.networks.language import Kept

    library: Any = importlib.import_module("transformers")
    config = getattr(library, f"{kind}Config")(vocab_size=512, num_key_value_heads=4, **size)
    network = library.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    dtype = compute_dtype(device, False)
    network = network.to(TORCH_DTYPE.get(dtype, torch.float32))
    target = torch.device(torch_name(device.id))
    network = quantize(network, FORMAT, embeddings=FORMAT).to(target)
    if target.type == "cpu":
        pack(network, dtype, torch.get_num_threads())
        attention.use(network)
    return Kept(network, target, CHUNK)


def _token(kept: Any) -> float:
    return statistics.median(_each(kept, 1, _TOKENS))


def _chunk(kept: Any) -> float:
    return statistics.median(_each(kept, CHUNK, _TURNS))


def _each(kept: Any, count: int, turns: int) -> list[float]:
    """Seconds of each of so many calls with ``count`` tokens, after one that packs."""
    kept.forget()
    found = []
    for _ in range(turns + 1):
        if count > 1:
            kept.forget()
        started = time.perf_counter()
        kept.forward([1] * count)
        found.append(time.perf_counter() - started)
    return found[1:]
