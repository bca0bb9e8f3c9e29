"""Compare ``rung check --training`` with a training step here: models of transformers on the CPU.

    python benchmarks/training_memory.py

Each case is a process of its own that builds a Llama with random weights and takes two steps of two batches, whose
gradients are accumulated; measured is the largest resident size above that before the model was built. Predicted is
the same: all but the runtime. 16-bit models are trained as mixed precision does it, with weights in f32 beside them,
adapters in the dtype of the model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MB = 1 << 20
BAR = 0.15
SMALL = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4}
SMALL |= {"intermediate_size": 1408, "vocab_size": 8000}
MIDDLE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12}
MIDDLE |= {"intermediate_size": 2048, "vocab_size": 32000}
WIDE = {**SMALL, "vocab_size": 64000}
SHAPES = {"26m": SMALL, "0.1b": MIDDLE, "0.1b-64k": WIDE}


@dataclass(frozen=True)
class Case:
    """One training: a shape of ``SHAPES``, how its weights are stored, lora or full, and what a step is."""

    shape: str
    dtype: str
    way: str
    optimizer: str
    batch: int
    sequence: int
    checkpointing: bool = False


CASES = (
    Case("26m", "f32", "full", "adamw", 4, 512),
    Case("26m", "f32", "full", "adamw", 4, 512, True),
    Case("26m", "bf16", "full", "adamw", 4, 512),
    Case("26m", "f32", "lora", "adamw", 4, 512),
    Case("26m", "bf16", "lora", "adamw", 8, 512),
    Case("0.1b", "f32", "full", "adamw", 2, 512),
    Case("0.1b", "f32", "full", "sgd", 1, 256),
    Case("0.1b", "bf16", "full", "adamw", 2, 512, True),
    Case("0.1b", "bf16", "lora", "adamw", 4, 512),
    Case("0.1b", "bf16", "lora", "adamw", 4, 512, True),
    Case("0.1b-64k", "f32", "full", "sgd", 2, 512),
    Case("0.1b-64k", "bf16", "lora", "adamw", 2, 1024, True),
)


def config(case: Case) -> dict[str, Any]:
    """The configuration as a ``config.json`` has it."""
    named = {"f32": "float32", "bf16": "bfloat16"}[case.dtype]
    found = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
    return {**found, **SHAPES[case.shape], "tie_word_embeddings": False, "dtype": named}


def predicted(case: Case) -> dict[str, int]:
    """Bytes by what they hold, the runtime left out."""
    from rung.hardware import catalog
    from rung.models.networks.component import describe
    from rung.planning.network_spec import Subject
    from rung.planning.training import training_use
    from rung.planning.weight_plan_cache import WeightPlanCache

    subject = Subject.of_component(describe(config(case), case.shape), "config", case.shape)
    device = catalog.device("v100")
    weights = WeightPlanCache(subject).plan(None, device, "f32", False).weights
    use = training_use(
        weights, subject, device, way=case.way, optimizer=case.optimizer, rank=16, batch=case.batch,
        sequence=case.sequence, checkpointing=case.checkpointing,
    )  # fmt: skip
    names = ("weights", "gradients", "optimizer", "activations", "workspace")
    return {name: getattr(use, name) for name in names}


def _resident(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith(name)).split()[1]) * 1024


def measured(case: Case) -> int:
    """Bytes of the largest resident size of this process above that before the model is built."""
    import torch
    import transformers

    torch.set_num_threads(2)
    llama_config = transformers.LlamaConfig(**{k: v for k, v in config(case).items() if k != "model_type"})
    _warm(torch, transformers, case.dtype)
    before = _resident("VmRSS:")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    model = transformers.LlamaForCausalLM._from_config(llama_config)
    if case.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    step = _steps(torch, model, case)
    tokens = torch.randint(0, llama_config.vocab_size, (case.batch, case.sequence))
    for _ in range(2):
        step(tokens)
    return _resident("VmHWM:") - before


def _warm(torch: Any, transformers: Any, dtype: str) -> None:
    """A step of a tiny model, so that libraries are loaded and their pools exist."""
    tiny = {**SMALL, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    named = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model = transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(**tiny), dtype=named)
    tokens = torch.zeros(1, 16, dtype=torch.long)
    model(tokens, labels=tokens).loss.backward()
    torch.optim.AdamW(model.parameters()).step()


def _steps(torch: Any, model: Any, case: Case) -> Any:
    """A function that takes one step; adapters are put into the model for LoRA."""
    if case.way == "lora":
        _adapt(torch, model, 16)
    trained = [value for value in model.parameters() if value.requires_grad]
    copied = case.way == "full" and case.dtype != "f32"
    masters = [value.detach().float() for value in trained] if copied else trained
    optimizer = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[case.optimizer](masters, lr=1e-4)

    def step(tokens: Any) -> None:
        for _ in range(2):
            model(tokens, labels=tokens, use_cache=False).loss.backward()
        if copied:
            for master, value in zip(masters, trained, strict=True):
                master.grad, value.grad = value.grad.float(), None
        optimizer.step()
        if copied:
            for master, value in zip(masters, trained, strict=True):
                value.data.copy_(master.data)
        optimizer.zero_grad()

    return step


def _adapt(torch: Any, model: Any, rank: int) -> None:
    """Low-rank adapters beside every linear layer but the head."""

    class Adapted(torch.nn.Module):
        def __init__(self, linear: Any) -> None:
            super().__init__()
            self.linear = linear
            dtype = linear.weight.dtype
            self.a = torch.nn.Parameter(torch.randn(rank, linear.in_features, dtype=dtype) / rank)
            self.b = torch.nn.Parameter(torch.zeros(linear.out_features, rank, dtype=dtype))

        def forward(self, x: Any) -> Any:
            return self.linear(x) + x @ self.a.T @ self.b.T

    model.requires_grad_(False)
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(part, name, Adapted(child))
    model.enable_input_require_grads()


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", help="measure this one, given as JSON, in this process")
    parser.add_argument("--only", default="", help="cases of shapes whose names begin so")
    arguments = parser.parse_args()
    if arguments.case:
        print(measured(Case(**json.loads(arguments.case))))
        return
    print("| model | stored | trained | batch x tokens | checkpoints | predicted MB | measured MB | error | |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    # freed memory goes back at once, so that the peak is what is held and not what was
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    good, cases = 0, [case for case in CASES if case.shape.startswith(arguments.only)]
    for case in cases:
        command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
        peak = int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        total = sum(predicted(case).values())
        error = total / peak - 1
        good += abs(error) <= BAR
        print(
            f"| {case.shape} | {case.dtype} | {case.way}, {case.optimizer} | {case.batch} x {case.sequence} "
            f"| {'yes' if case.checkpointing else 'no'} | {total / MB:.0f} | {peak / MB:.0f} | {error:+.0%} "
            f"| {'pass' if abs(error) <= BAR else 'MISS'} |",
            flush=True,
        )
    print(f"\nwithin {BAR:.0%}: {good} of {len(cases)}")


if __name__ == "__main__":
    main()
