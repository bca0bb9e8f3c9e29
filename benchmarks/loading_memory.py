"""The resident peak of loading a 16-bit folder through transformers, quantized on the way.

    python benchmarks/loading_memory.py [--format nf4] [--layers 32] [--folder DIR]

Writes a Llama of 2.6 billion random bf16 weights as a sharded folder to DIR (by default a temporary folder, which is
deleted), and loads it in a process of its own with ``quantization_config=rung.QuantizationConfig(FORMAT)``. Prints the
largest resident size of that process, what it was after its imports, what the loaded model takes, the largest tensor of
the folder, and the bar: model + largest tensor + 700 MB. ``--layers`` makes the model smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MB = 1 << 20
BAR = 700 * MB
_SHARD = 1 << 30


def make(folder: Path, layers: int) -> None:
    """Writes the folder, a shard at a time."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2560,
        intermediate_size=6912,
        num_hidden_layers=layers,
        num_attention_heads=20,
        num_key_value_heads=20,
        vocab_size=32000,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        shapes = {name: part.shape for name, part in LlamaForCausalLM(config).named_parameters()}
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    values = (torch.randn(1 << 22) / 50).to(torch.bfloat16)
    shard: dict[str, torch.Tensor] = {}
    places: dict[str, str] = {}
    number = 1
    for name, shape in shapes.items():
        count = shape.numel()
        shard[name] = values.repeat(-(-count // len(values)))[:count].reshape(shape)
        places[name] = file = f"model-{number:05}.safetensors"
        if len(places) == len(shapes) or sum(part.nbytes for part in shard.values()) > _SHARD:
            save_file(shard, folder / file, {"format": "pt"})
            shard, number = {}, number + 1
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def status(name: str) -> int:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) << 10


def load(folder: Path, format: str) -> None:
    """Loads the folder and prints what that took, as JSON."""
    import torch
    from safetensors import safe_open
    from transformers import LlamaForCausalLM

    import rung

    config = rung.QuantizationConfig(format=format)
    before, start = status("VmRSS"), time.monotonic()
    model = LlamaForCausalLM.from_pretrained(folder, quantization_config=config, dtype=torch.bfloat16)
    took, peak = time.monotonic() - start, status("VmHWM")
    storages = {part.data_ptr(): part.nbytes for part in [*model.parameters(), *model.buffers()]}
    largest = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            sizes = [opened.get_slice(name).get_shape() for name in opened.keys()]  # noqa: SIM118 (no mapping)
        largest = max(largest, *(2 * torch.Size(size).numel() for size in sizes))
    print(
        json.dumps({"peak": peak, "imports": before, "model": sum(storages.values()), "largest": largest, "took": took})
    )


def main() -> None:
    """Makes the folder, loads it and prints the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", default="nf4")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="kept, and taken as it is where it is made already")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load:
        load(chosen.load, chosen.format)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        if not (folder / "model.safetensors.index.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            make(folder, chosen.layers)
        command = [sys.executable, __file__, "--load", str(folder), "--format", chosen.format]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ)
    found = json.loads(done.stdout.splitlines()[-1])
    bar = found["model"] + found["largest"] + BAR
    for name in ("imports", "model", "largest", "peak"):
        print(f"{name:10} {found[name] / MB:8.0f} MB")
    print(f"{'bar':10} {bar / MB:8.0f} MB   loaded in {found['took']:.1f} s")
    sys.exit(found["peak"] > bar)


if __name__ == "__main__":
    main()
