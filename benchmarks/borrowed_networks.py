"""Networks that only transformers builds: ``rung run``'s speed beside transformers' own, and beside what was predicted.

    rung calibrate
    python benchmarks/borrowed_networks.py --folder FOLDER [--format q8_0 ...] [--turns 5]

Networks of random weights in bfloat16 (a mixture of experts of 0.49 billion, GPT-2's and Phi's kinds of 0.19 and 0.27)
are written into FOLDER unless they are there. Both programs hold one at once and take turns: a prompt of 512 tokens,
then 24 tokens after it; of each turn the median token counts. Ratios are medians over the turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache

import rung
from rung.hub.networks.language import Kept

PROMPT, TOKENS, VOCABULARY = 512, 24, 32000
KINDS: dict[str, tuple[str, dict[str, int]]] = {
    "mixture": (
        "Mixtral",
        {
            "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
            "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2,
        },
    ),
    "gpt2": ("GPT2", {"n_embd": 1024, "n_layer": 12, "n_head": 16}),
    "phi": (
        "Phi",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16},
    ),
}  # fmt: skip


def write(folder: Path, kind: str) -> Path:
    """A network of random weights with a tokenizer that has its words."""
    target = folder / kind
    if (target / "config.json").is_file():
        return target
    from tokenizers import Tokenizer, models

    name, values = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, eos_token_id=1, bos_token_id=None, **values)
    transformers.AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(target)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, "w0"))
    words.save(str(target / "tokenizer.json"))
    return target


class Theirs:
    """transformers' own network, as its ``generate`` calls it."""

    def __init__(self, folder: Path) -> None:
        self._network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self.forget()

    def forget(self) -> None:
        """As if no token had been read."""
        self._cache = DynamicCache(config=self._network.config)

    def forward(self, ids: list[int]) -> None:
        """One call."""
        with torch.inference_mode():
            self._network(torch.tensor([ids]), past_key_values=self._cache, use_cache=True, logits_to_keep=1)


def turn(network: Theirs | Kept) -> tuple[float, float]:
    """Tokens a second of a prompt and after it."""
    network.forget()
    started = time.perf_counter()
    network.forward([5] * PROMPT)
    read = time.perf_counter() - started
    took = []
    for _ in range(TOKENS):
        started = time.perf_counter()
        network.forward([7])
        took.append(time.perf_counter() - started)
    return PROMPT / read, 1 / statistics.median(took)


def compare(folder: Path, format: str, turns: int) -> str:
    """A row of the table."""
    model: Any = rung.load(folder, format=format, context=PROMPT + 2 * TOKENS, device="cpu")
    mine, theirs = model.backend.kept, Theirs(folder)
    turn(mine), turn(theirs)
    both = [(turn(mine), turn(theirs)) for _ in range(turns)]
    cells = []
    for which, predicted in ((1, model.plan.decode_rate), (0, model.plan.prefill_rate)):
        ours, peers = ([pair[side][which] for pair in both] for side in (0, 1))
        ratio = statistics.median(a / b for a, b in zip(ours, peers, strict=True))
        middle: Callable[[list[float]], float] = statistics.median
        cells += [f"{middle(ours):.1f}", f"{middle(peers):.1f}", f"{ratio:.2f}", f"{predicted:.1f}"]
        cells.append(f"{predicted / middle(ours) - 1:+.0%}")
    return f"| {folder.name} | {format} | " + " | ".join(cells) + " |"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--format", nargs="+", default=["bf16", "q8_0", "nf4"])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    speed = ("tokens/s", "transformers in bf16", "ratio", "predicted", "off")
    names = ["network", "format", *(f"{what} {name}" for what in ("decode", "prefill") for name in speed)]
    print("| " + " | ".join(names) + " |")
    print("|---" * 12 + "|")
    for kind in KINDS:
        for format in options.format:
            print(compare(write(options.folder, kind), format, options.turns), flush=True)


if __name__ == "__main__":
    main()
