"""Make an original of a model that is published in 4 bits: float weights that fill their range.

    python benchmarks/quantization/originals.py smollm2.gguf original.gguf [--steps 120] [--widen 768]
    python benchmarks/quantization/originals.py gemma-3-270m.gguf original.gguf --rate 2e-5 --freeze-embedding

Each weight gets noise, uniform over half a step of its block to either side, so that no grid remains. Then all
weights are fine-tuned on text until perplexity on other text is within 10 % of the file's, for half of ``--steps`` at
least. ``--widen`` makes a Llama wider before that, so that blocks of 256 divide its rows. ``--freeze-embedding`` leaves
the embedding and a tied head as the noise made them: Gemma 3 270M has 168M of its 268M weights there. The same seed
gives the same bytes on the same machine. Needs torch and transformers; 60 steps of SmolLM2 at 768 take 2 minutes on two
cores of an EPYC with bfloat16 and nothing beside it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mixed_texts import mixed
from widening import widened

from rung import formats
from rung.conversion.checkpoint_layouts import folder_names
from rung.conversion.convert import converting
from rung.conversion.writing import write
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.formats.families import kquants
from rung.models.lookup import find_card
from rung.models.reader import Reader
from rung.quantization.text import windows

_LENGTH, _BATCH, _EVERY, _SLACK = 256, 1, 10, 1.10


def fast_products() -> torch.autocast:
    """Compute in bfloat16 where the processor has instructions for it; float32 is faster elsewhere."""
    able = torch.cpu.get_capabilities()
    return torch.autocast("cpu", torch.bfloat16, enabled=bool(able.get("avx512_bf16") or able.get("amx_bf16")))


def steps_of(stored: Encoded) -> Floats:
    """Return the step between neighboring values at each weight [rows, columns]."""
    layout = formats.layout(stored.format)
    assert layout is not None
    blocks = stored.parts["data"].reshape(-1).view(layout)
    factor = blocks["d"].astype(np.float32)[:, None]
    if stored.format.name in ("q4_k", "q5_k"):
        factor = factor * kquants.scales_and_minima(blocks["scales"])[0]
    elif stored.format.name == "q6_k":
        factor = factor * blocks["scales"]
    return np.abs(np.repeat(factor, stored.shape[0] * stored.shape[1] // factor.size)).reshape(stored.shape)


def noise_of(stored: Encoded, rng: np.random.Generator) -> Floats:
    """Return noise [rows, columns], uniform over a step around each weight."""
    step = steps_of(stored)
    found: Floats = rng.uniform(-0.5, 0.5, step.shape).astype(np.float32) * step
    return found


def add_noise(model: torch.nn.Module, source: str, folder: Path, seed: int) -> None:
    """Add the noise to the matrices of a model of transformers that was made of the file ``source`` by ``folder``."""
    card = find_card(source, offline=True)
    rng = np.random.default_rng(seed)
    named = folder_names(find_card(str(folder), offline=True))
    parameters = dict(model.named_parameters())
    with Reader(card) as reader:
        for tensor in card.tensors:
            if len(tensor.shape) < 2 or tensor.format in ("f32", "f16", "bf16"):
                continue
            parameters[named[tensor.role]].data += torch.from_numpy(noise_of(reader.read(tensor), rng))


def perplexity(model: Any, ids: torch.Tensor) -> float:
    """Return the perplexity of ids [windows, length]."""
    total = 0.0
    with torch.inference_mode(), fast_products():
        for window in ids:
            total += float(model(input_ids=window[None], labels=window[None]).loss)
    return math.exp(total / len(ids))


def tune(model: Any, train: torch.Tensor, check: torch.Tensor, goal: float, steps: int, rate: float, seed: int) -> None:
    """Fine-tune until the perplexity of ``check`` is at most ``goal``, for at least half of ``steps``."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    free = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(free, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 10) * (0.1 + 0.9 * (1 - step / steps))
    )
    began = time.monotonic()
    for step in range(steps):
        batch = train[order[(step * _BATCH + torch.arange(_BATCH)) % len(order)]]
        with fast_products():
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(free, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % _EVERY == 0:
            reached = perplexity(model, check)
            took = time.monotonic() - began
            print(f"step {step + 1}: loss {loss.item():.3f}, perplexity {reached:.3f}, {took:.0f} s", flush=True)
            if reached <= goal and 2 * (step + 1) >= steps:
                return


def main() -> None:
    """Make the original and say its perplexity beside the file's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("target", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--widen", type=int, help="dimensions of the hidden states, 768 for SmolLM2")
    parser.add_argument("--freeze-embedding", action="store_true", help="give it noise, and tune the rest")
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM

    from rung.engine.tokenizers.tokenizer import Tokenizer

    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_card(find_card(options.source, offline=True))
    with tempfile.TemporaryDirectory(dir=options.target.parent) as temporary:
        before, after = Path(temporary, "before"), Path(temporary, "after")
        write(converting(find_card(options.source, offline=True), False, "f32"), before, 2)
        model: Any = AutoModelForCausalLM.from_pretrained(before, dtype=torch.float32)
        check = windows(tokenizer, mixed("calibration", 30_000), _LENGTH, 8 * _LENGTH)
        train = windows(tokenizer, mixed("train", 8 * _LENGTH * options.steps), _LENGTH, options.steps * _LENGTH)
        file = perplexity(model, check)
        add_noise(model, options.source, before, options.seed)
        print(f"perplexity of the file {file:.3f}, with noise {perplexity(model, check):.3f}", flush=True)
        if options.widen is not None:
            model = widened(model, options.widen, options.seed)
            print(f"widened to {options.widen}: perplexity {perplexity(model, check):.3f}", flush=True)
        if options.freeze_embedding:
            model.get_input_embeddings().weight.requires_grad_(False)
        tune(model, train, check, _SLACK * file, options.steps, options.rate, options.seed)
        model.save_pretrained(after)
        for path in before.iterdir():
            if not path.name.endswith(".safetensors") and not (after / path.name).exists():
                (after / path.name).write_bytes(path.read_bytes())
        write(converting(find_card(str(after), offline=True), True, "f32"), options.target, 2)
        print(f"{options.target}: perplexity {perplexity(model, check):.3f}, the file's {file:.3f}")


if __name__ == "__main__":
    main()
