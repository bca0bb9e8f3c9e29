"""Compare the KL of a model in nf4 and int8 by ``rung.quantize`` with the same formats by bitsandbytes, at equal bytes.

    python benchmarks/quantization/beside_bitsandbytes.py ORIGINAL.gguf [--tokens 2048] [--samples 4096]

ORIGINAL is a GGUF file in f32 or bf16 (``originals.py``); its linear layers but the head are quantized. bitsandbytes
rounds each weight by itself; ``rung.quantize`` gets samples of the text that is for calibration. KL, in nats a token,
is measured on text that neither saw, in f32 on the decoded weights of both.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mixed_texts import mixed
from torch import Tensor, nn

import rung
from rung.conversion.convert import converting
from rung.conversion.writing import write
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.kernels.cpu import target
from rung.models.lookup import find_card
from rung.quantization.text import windows

_LENGTH = 512
_FORMATS = {"nf4": "nf4", "int8": "llm_int8"}


def theirs(weight: Tensor, name: str) -> tuple[Tensor, int]:
    """Return a weight [rows, columns] as bitsandbytes decodes it, and its bytes."""
    import bitsandbytes.functional as bnb

    if name == "nf4":
        codes, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4")
        return bnb.dequantize_4bit(codes, state), codes.nbytes + state.absmax.nbytes
    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    return codes.float() * scales[:, None] / 127, codes.nbytes + scales.nbytes


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers but the head, by name."""
    return {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear) and name != "lm_head"}


def kl_of(model: nn.Module, exact: list[Tensor], ids: Tensor) -> float:
    """Return the mean KL of a model from the exact log probabilities of windows."""
    total = 0.0
    with torch.inference_mode():
        for p, window in zip(exact, ids, strict=True):
            q = model(input_ids=window[None]).logits[0, :-1].log_softmax(dim=1)
            total += float((p.exp() * (p - q)).sum(dim=1).mean())
    return total / len(ids)


def changed(model: nn.Module, weight_of: Callable[[str, nn.Linear], Tensor]) -> Any:
    """Return a copy of a model with other weights of its linear layers."""
    result = copy.deepcopy(model)
    for name, layer in linears(result).items():
        layer.weight.data = weight_of(name, layer).float()
    return result


def compare(model: Any, name: str, samples: list[Tensor], exact: list[Tensor], ids: Tensor) -> None:
    """Print the KL of a format by both, and of ``rung.quantize`` without samples."""
    sizes = [0, 0]

    def other(_: str, layer: nn.Linear) -> Tensor:
        decoded, size = theirs(layer.weight.data, name)
        sizes[0] += size
        return decoded

    found = [kl_of(changed(model, other), exact, ids)]
    for texts in (samples, []):
        quantized = rung.quantize(copy.deepcopy(model), _FORMATS[name], skip=["lm_head"], samples=texts)
        modules = {key: layer for key, layer in quantized.named_modules() if hasattr(layer, "stored")}
        sizes[1] = sum(part.nbytes for layer in modules.values() for part in layer.stored.parts().values())
        found.append(kl_of(changed(model, lambda key, _, modules=modules: modules[key].stored.decode()), exact, ids))
    print(
        f"{name}: {sizes[0]:,} bytes by bitsandbytes, {sizes[1]:,} by rung; KL {found[0]:.5f} by bitsandbytes, "
        f"{found[1]:.5f} by rung with samples (ratio {found[1] / found[0]:.2f}), {found[2]:.5f} without",
        flush=True,
    )


def main() -> None:
    """Print a row for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--formats", nargs="+", choices=tuple(_FORMATS), default=tuple(_FORMATS))
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM

    target.configure()
    card = find_card(options.original, offline=True)
    tokenizer = Tokenizer.from_card(card)
    with tempfile.TemporaryDirectory(dir=Path(options.original).parent) as temporary:
        folder = Path(temporary, "model")
        write(converting(card, False, "f32"), folder, 2)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    samples = list(windows(tokenizer, mixed("calibration", 5 * options.samples), _LENGTH, options.samples)[:, None])
    ids = windows(tokenizer, mixed("held-out", 5 * options.tokens), _LENGTH, options.tokens)
    with torch.inference_mode():
        exact = [model(input_ids=window[None]).logits[0, :-1].log_softmax(dim=1) for window in ids]
    for name in options.formats:
        compare(model, name, samples, exact, ids)


if __name__ == "__main__":
    main()
