"""What an adapter costs while a model runs: the model with it beside the weights, the merged model, the base alone.

``python benchmarks/adapters.py MODEL [--rank 16] [--rounds 5]``: MODEL is a GGUF file or a folder. Makes a random LoRA
in float16 for every linear layer, merges a copy with ``rung merge``, and measures decode and prompt in turns, all
three loaded in one process.
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
from rung.cli.app import main as rung_main
from rung.engine.scheduling.sequence_reader import SequenceReader
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


def measure(model, prompt: int, tokens: int) -> tuple[float, float]:
    """Return tokens per second of a prompt of so many tokens, and of decoding after it."""
    model.backend.get_ready(prompt)
    with SequenceReader(model.backend) as reader:
        start = time.perf_counter()
        reader.prefill([5 + n % 100 for n in range(prompt)])
        middle = time.perf_counter()
        for n in range(tokens):
            reader.step(5 + n % 100)
        return prompt / (middle - start), tokens / (time.perf_counter() - middle)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        adapter = Path(made) / "adapter"
        write_adapter(given.model, adapter, given.rank)
        report_loss(given.model, adapter)
        merged = Path(made) / f"merged{Path(given.model).suffix}"
        try:
            rung_main(["merge", given.model, str(adapter), str(merged)])
        except SystemExit as ended:
            if ended.code:
                raise
        load = {"device": "cpu", "context": given.prompt + given.tokens + 8}
        models = {
            "base": rung.load(given.model, **load),
            "adapter": rung.load(given.model, **load, adapters=[adapter]),
            "merged": rung.load(str(merged), **load),
        }
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
        for _ in range(given.rounds + 1):
            for name, model in models.items():
                rates[name].append(measure(model, given.prompt, given.tokens))
    print(f"{Path(given.model).name}, rank {given.rank}, median of {given.rounds} rounds in turns")
    print("            prompt tokens/s   decode tokens/s   decode, best")
    for name, found in rates.items():
        prompt, decode = zip(*found[1:], strict=True)  # the first round compiles
        print(f"{name:<10} {statistics.median(prompt):>16.1f} {statistics.median(decode):>17.1f} {max(decode):>14.1f}")
    middle = {name: statistics.median(rate for _, rate in found[1:]) for name, found in rates.items()}
    best = {name: max(rate for _, rate in found[1:]) for name, found in rates.items()}
    ratios = [m[1] / a[1] for a, m in zip(rates["adapter"][1:], rates["merged"][1:], strict=True)]
    print(
        f"decode, merged / adapter: {middle['merged'] / middle['adapter']:.2f} (medians), "
        f"{best['merged'] / best['adapter']:.2f} (best), {statistics.median(ratios):.2f} (median of rounds)"
    )


if __name__ == "__main__":
    main()
