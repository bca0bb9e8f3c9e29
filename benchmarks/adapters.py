"""Measure the cost of adapters while a model runs: the same model with them and without, in turns in one process.

``python benchmarks/adapters.py MODEL [--rank 16] [--rounds 5]``: MODEL is a GGUF file or a folder. Makes a random LoRA
in float16 for every linear layer. Measures steps of 1, 4 and 8 sequences and a prompt: all rows with the adapter, each
row with an adapter of its own, and half of the rows with one. The bar is what a step has to read, with the adapters
over without, times 1.1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import rung
from rung import formats
from rung.models.adapters.roles import read_changes
from rung.models.open import open_card
from rung.models.reader import Reader
from rung.models.roles import shape_of

NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


#: Tokens of each sequence that are timed.
STEPS = 24


def write_adapter(model: str, folder: Path, rank: int) -> None:
    """Write a LoRA with random values for every linear layer, as PEFT saves it, in float16."""
    decoder, random, tensors = open_card(model).decoder, np.random.default_rng(1), {}
    for index in range(len(decoder.layers)):
        for role, name in NAMES.items():
            rows, columns = shape_of(f"layers.{index}.{role}", decoder)
            prefix = f"base_model.model.model.layers.{index}.{name}"
            down = random.standard_normal((rank, columns)) / np.sqrt(columns)
            up = random.standard_normal((rows, rank)) * 0.02
            tensors[f"{prefix}.lora_A.weight"] = down.astype(np.float16)
            tensors[f"{prefix}.lora_B.weight"] = up.astype(np.float16)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [*NAMES.values()]}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def report_loss(model: str, adapter: Path) -> None:
    """Print what is left of the change when it is merged into weights of a format: its energy over its error's."""
    card = open_card(model)
    changes = read_changes([str(adapter)], card)
    roles = [f"layers.{len(card.decoder.layers) // 2}.{role}" for role in NAMES]
    print("the change after merging, dB above its error (worst of a layer's weights):")
    with Reader(card) as reader:
        base = {role: formats.decode(reader.read(card.tensor(role))) for role in roles}
    for name in ("f32", "f16", "bf16", "q8_0", "q4_1"):
        format, found = formats.get(name), []
        for role in roles:
            kept = formats.decode(formats.encode(base[role], format))
            (change,) = changes[role]
            merged = formats.decode(formats.encode(change.added_to(kept, 0), format))
            delta = change.scale * change.up.astype(np.float64) @ change.down
            found.append(10 * np.log10(np.square(delta).sum() / np.square(merged - kept - delta).sum()))
        print(f"  {name:<5} {min(found):6.1f} dB   (beside the weight: exact but for float32 sums)")


def seconds(backend, adapters, ids) -> float:
    """Return the time of a step: ``ids`` after what a sequence for each of ``adapters`` has read, one token of it."""
    caches = [backend.begin((), "", False, adapter) for adapter in adapters]
    for cache in caches:
        backend.reserve(cache, len(ids) + STEPS)
    start = time.perf_counter()
    if len(ids) > 1:
        backend.compute([(cache, ids, 1, None) for cache in caches])
        found = time.perf_counter() - start
    else:
        for step in range(STEPS):
            backend.compute([(cache, [5 + (step + 7 * row) % 100], 1, None) for row, cache in enumerate(caches)])
            for cache in caches:
                cache.advance([5])
        found = (time.perf_counter() - start) / STEPS
    for cache in caches:
        backend.end(cache, "", False)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--loss", action="store_true", help="what merging loses in each format, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        adapter = Path(temporary) / "adapter"
        write_adapter(options.model, adapter, options.rank)
        if options.loss:
            report_loss(options.model, adapter)
        changes = read_changes([str(adapter)], open_card(options.model))
    model = rung.load(options.model, device="cpu", context=options.prompt + STEPS, parallel=8, threads=options.threads)
    backend = model.backend
    one, *others = (backend.bind_adapter(changes) for _ in range(8))
    tensors = open_card(options.model).tensors
    read = sum(tensor.bytes for tensor in tensors if len(tensor.shape) > 1)
    print(f"{Path(options.model).name}, rank {options.rank}: {one.nbytes / 1e6:.1f} MB beside {read / 1e6:.1f} MB")
    prompt = [5 + n % 100 for n in range(options.prompt)]
    cases = {"1 row": ([one], [5], 1), f"prompt of {options.prompt}": ([one], prompt, 1)}
    for rows in (4, 8):
        cases[f"{rows} rows, one adapter"] = [one] * rows, [5], 1
        cases[f"{rows} rows, {rows} adapters"] = [one, *others][:rows], [5], rows
        cases[f"{rows} rows, half with one"] = [one] * (rows // 2) + [None] * (rows // 2), [5], 1
    print(f"median of {options.rounds} rounds in turns, ms\n{'':<24} without    with   ratio     bar")
    for name, (adapters, ids, several) in cases.items():
        found = []
        for _ in range(options.rounds + 1):
            found.append((seconds(backend, [None] * len(adapters), ids), seconds(backend, adapters, ids)))
        without, with_it = map(statistics.median, zip(*found[1:], strict=True))  # the first round builds programs
        ratio = statistics.median(mine / plain for plain, mine in found[1:])
        bar = 1.1 * (read + several * one.nbytes) / read
        print(f"{name:<24} {1e3 * without:7.2f} {1e3 * with_it:7.2f} {ratio:7.3f} {bar:7.3f}")


if __name__ == "__main__":
    main()
