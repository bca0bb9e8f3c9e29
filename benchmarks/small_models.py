"""Predicted beside measured memory of small models, each in a process of its own: a short question and a full context.

    python benchmarks/small_models.py [MODEL ...] [--context 4096]

MODEL are names or files, by default ``demo``. Kernels are compiled by a first run that does not count. The prediction
is the plan's total without its error bound, the measurement the resident peak of the process. Exit status 1 if one is
off by more than 10 % and 30 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

MB = 1 << 20
SHARE, LEAST = 0.10, 30 * MB
SENTENCE = "The quick brown fox jumps over the lazy dog and runs away. "


def ask(model: str, prompt: str, context: int) -> dict[str, Any]:
    """Return the result of ``rung run --json`` for a raw prompt."""
    options = ["--raw", "--json", "--max-tokens", "8", "--temperature", "0", "--context", str(context)]
    command = [sys.executable, "-m", "rung", "run", model, prompt, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def fill(model: str, context: int) -> str:
    """Return a prompt that nearly fills the context, by what a shorter one took."""
    few = 10
    each = ask(model, SENTENCE * few, min(context, 512))["prompt_tokens"] / few
    return SENTENCE * int((context - 16) / each)


def main() -> None:
    """Print one row a model, context and prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["demo"])
    parser.add_argument("--context", type=int, default=4096)
    arguments = parser.parse_args()
    missed = 0
    print("| model | context | prompt tokens | predicted MB | measured MB | off |\n|---|---|---|---|---|---|")
    for model in arguments.models:
        for context in dict.fromkeys((512, 512 if model == "demo" else arguments.context)):
            full = fill(model, context)
            for prompt in ("What is the capital of France?", full):
                result = ask(model, prompt, context)
                memory = result["plan"]["placements"][0]["memory"]
                predicted = sum(count for name, count in memory.items() if name != "bound")
                measured = result["peak_memory_bytes"]
                off = abs(predicted - measured)
                missed += off > max(SHARE * measured, LEAST)
                name, tokens = model.rpartition("/")[2], result["prompt_tokens"]
                figures = f"{predicted / MB:.0f} | {measured / MB:.0f} | {predicted / measured - 1:+.1%}"
                print(f"| {name} | {context:,} | {tokens:,} | {figures} |", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
