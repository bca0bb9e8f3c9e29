"""A training step of a QLoRA beside bitsandbytes: the same Llama of 0.3 billion random weights in nf4, in turns.

    python benchmarks/qlora_step.py [--tokens 256] [--dtype float32] [--turns 5] [--layers 20]

Both hold the same weights, with LoRA of PEFT (rank 16) on every linear layer but the head, and take the same tokens:
forward, backward and a step of torch's AdamW on the adapters. Prints the median of each in ms, the median of the ratios
of neighboring steps (above 1: rung is faster), and the losses of both, which are to agree.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import rung
from rung.hub.peft import prepare

_SHAPE = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "vocab_size": 32000}


def theirs(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model with bitsandbytes' layers, head left out, as transformers makes them."""
    import bitsandbytes

    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and name != "lm_head":
            columns, rows = layer.in_features, layer.out_features
            options = {"quant_type": "nf4", "compress_statistics": False}
            quantized = bitsandbytes.nn.Linear4bit(columns, rows, False, compute_dtype=dtype, device="meta", **options)
            quantized.weight = bitsandbytes.nn.Params4bit(
                layer.weight.data, requires_grad=False, module=quantized, **options
            )
            model.set_submodule(name, quantized.to("cpu"))
    holder: Any = model
    holder.is_loaded_in_4bit = True
    return model


def step(model: nn.Module, ready: Callable[[LoraConfig], LoraConfig]) -> Callable[[torch.Tensor], float]:
    """A training step, which returns the loss."""
    torch.manual_seed(1)
    base: Any = model
    adapted = get_peft_model(base, ready(LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))).train()
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], 1e-3)

    def run(ids: torch.Tensor) -> float:
        loss = adapted(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return run


def main() -> None:
    """Prints the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    dtype = getattr(torch, chosen.dtype)
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(**_SHAPE, num_hidden_layers=chosen.layers, tie_word_embeddings=True))
    plain = plain.to(dtype)
    runs = step(rung.quantize(copy.deepcopy(plain), "nf4"), prepare), step(theirs(plain, dtype), lambda config: config)
    ids = torch.randint(_SHAPE["vocab_size"], (1, chosen.tokens), generator=torch.Generator().manual_seed(2))
    times: tuple[list[float], list[float]] = ([], [])
    losses = [0.0, 0.0]
    for turn in range(chosen.turns + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            losses[which] = runs[which](ids)
            if turn:
                times[which].append(1000 * (time.perf_counter() - start))
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    medians = [statistics.median(each) for each in times]
    print(f"{chosen.tokens} tokens, {chosen.dtype}, {chosen.threads} threads, {chosen.layers} layers")
    print(f"rung {medians[0]:.0f} ms, bitsandbytes {medians[1]:.0f} ms: {ratio:.2f} x")
    print(f"loss after {chosen.turns + 1} steps: {losses[0]:.4f}, {losses[1]:.4f}")


if __name__ == "__main__":
    main()
