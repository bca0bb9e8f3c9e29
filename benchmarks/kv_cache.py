"""Measure caches in blocks: tokens a second far into a context, memory, and divergence on prose.

    python benchmarks/kv_cache.py MODEL.gguf ... [--depth 4096] [--turns 7] [--llama-cpp BUILD/bin]

Models with a cache of f16, of q8_0, q5_1 and q4_0 are loaded into one process and decode in turns, each ``--tokens``
after ``--depth`` others; a ratio to f16 is the median over the turns. ``--llama-cpp`` measures ``llama-bench`` with
these caches at that depth, too, in turns of its own. The divergence (KL, nats, mean and largest over all positions) is
that of ``tests/data/prose.txt`` from the same model with a cache of f32, as one prompt and token by token; ``long``
that of the second half of two windows of ``--depth`` tokens of help pages, code and licences, by ``llama-perplexity``,
too; ``rotation`` what rotating keys and values in q4_0 is worth, and searching for steps, in exact arithmetic.
Memory is the peak of a process that comes to the end of its context, beside what was planned.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import rung
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.models.lookup import find_card
from rung.ops.decode_step.rope import in_nibbles, spread_evenly
from rung.quantization.divergence import Reference
from rung.quantization.network import Arithmetic, in_blocks
from rung.quantization.running import mixed_windows
from rung.quantization.text import text_of, windows

TEXT = Path(__file__).parents[1] / "tests" / "data" / "prose.txt"
TYPES = ("f16", "q8_0", "q5_1", "q4_0")
MEMORY = """
import json, sys
import rung
from rung.engine.planning import peak_memory
from rung.engine.scheduling.sequence_reader import SequenceReader

path, dtype, context, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])
model = rung.load(path, context=context, threads=threads, cache_type=dtype)
SequenceReader(model.backend).prefill([5 + (11 * at) % 200 for at in range(context)])
print(json.dumps([model.plan.memory, model.plan.placements[0].memory.most, peak_memory()]))
"""


def speeds(path: Path, options: argparse.Namespace) -> None:
    """Print tokens a second with each cache, and its ratio to f16."""
    context = options.depth + options.turns * options.tokens + 8
    readers = {}
    for dtype in TYPES:
        model = rung.load(str(path), context=context, threads=options.threads, cache_type=dtype, device="cpu")
        readers[dtype] = SequenceReader(model.backend)
        started = time.perf_counter()
        readers[dtype].prefill([5 + (11 * at) % 200 for at in range(options.depth)])
        took = time.perf_counter() - started
        print(f"{path.stem}, cache {dtype}: a prompt of {options.depth:,} at {options.depth / took:.0f} tokens/s")
    rates: dict[str, list[float]] = {dtype: [] for dtype in TYPES}
    for turn in range(options.turns):
        for dtype in TYPES if turn % 2 else TYPES[::-1]:
            started = time.perf_counter()
            for at in range(options.tokens):
                readers[dtype].step(5 + (7 * at) % 200)
            rates[dtype].append(options.tokens / (time.perf_counter() - started))
    print(f"{path.stem}, after {options.depth:,} tokens: {ratios(rates)}", flush=True)


def ratios(rates: dict[str, list[float]]) -> str:
    """Return the rates of each cache in words, with the median of their ratios to f16."""
    words = []
    for dtype, found in rates.items():
        ratio = statistics.median(mine / plain for mine, plain in zip(found, rates["f16"], strict=True))
        words.append(f"{dtype} {statistics.median(found):.1f} tokens/s ({ratio:.2f})")
    return ", ".join(words)


def theirs(path: Path, options: argparse.Namespace) -> None:
    """Print the same of llama.cpp."""
    rates: dict[str, list[float]] = {dtype: [] for dtype in TYPES}
    for _ in range(3):
        for dtype in TYPES:
            command = [str(options.llama_cpp / "llama-bench"), "-m", str(path), "-p", "0", "-n", "32", "-r", "1"]
            command += ["-d", str(options.depth), "-ctk", dtype, "-ctv", dtype, "-fa", "1", "-t", str(options.threads)]
            said = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=True).stdout
            rates[dtype].append(json.loads(said)[-1]["avg_ts"])
    print(f"{path.stem}, llama.cpp: {ratios(rates)}", flush=True)


def divergences(path: Path, options: argparse.Namespace) -> None:
    """Print how far the logits of each cache are from those of a cache of f32."""
    found = {}
    for dtype in ("f32", *TYPES):
        model = rung.load(str(path), context=options.prose, threads=options.threads, cache_type=dtype, device="cpu")
        ids = model.tokenizer.encode(TEXT.read_text(encoding="utf-8"), special=True, bos=True)[: options.prose]
        with SequenceReader(model.backend) as whole:
            prompt = whole.logits(ids)
        with SequenceReader(model.backend) as single:
            found[dtype] = prompt, np.stack([single.step(token) for token in ids])
    for dtype in TYPES:
        for way, which in (("as a prompt", 0), ("token by token", 1)):
            each = divergence(found["f32"][which], found[dtype][which])
            same = (found["f32"][which].argmax(-1) == found[dtype][which].argmax(-1)).mean()
            words = f"KL {each.mean():.2e}, largest {each.max():.2e}, same choice {same:.1%}"
            print(f"{path.stem}, cache {dtype}, {len(each)} tokens {way}: {words}", flush=True)


def long(path: Path, options: argparse.Namespace) -> None:
    """Print the same of the second half of windows as long as the depth, and of llama.cpp with the same text."""
    text = "\n".join(text_of(kind, 18 * options.depth // 3, None) for kind in ("prose", "code", "licences"))
    exact: list[np.ndarray] = []
    half, piece = options.depth // 2, 256
    for dtype in ("f32", *TYPES):
        model = rung.load(str(path), context=options.depth, threads=options.threads, cache_type=dtype, device="cpu")
        kl = []
        for number, window in enumerate(windows(model.tokenizer, text, options.depth, 2 * options.depth).tolist()):
            with SequenceReader(model.backend) as reader:
                reader.prefill(window[:half])
                found = reader.logits(window[half:])
            if dtype == "f32":
                exact.append(found)
                continue
            parts = [divergence(*(a[at : at + piece] for a in (exact[number], found))) for at in range(0, half, piece)]
            kl.append(f"{np.concatenate(parts).mean():.2e}")
        if kl:
            print(f"{path.stem}, cache {dtype}, {half:,} tokens after as many, twice: KL {', '.join(kl)}", flush=True)
    if options.llama_cpp:
        with tempfile.TemporaryDirectory() as folder:
            _long_theirs(path, options, text, Path(folder))


def _long_theirs(path: Path, options: argparse.Namespace, text: str, folder: Path) -> None:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    command = [
        str(options.llama_cpp / "llama-perplexity"),
        "-m",
        str(path),
        "-f",
        str(folder / "text.txt"),
        "-fa",
        "on",
    ]
    command += ["-c", str(options.depth), "--chunks", "2", "-t", str(options.threads)]
    command += ["--kl-divergence-base", str(folder / "base")]
    for dtype in ("f32", *TYPES):
        more = ["-ctk", dtype, "-ctv", dtype, *(["--kl-divergence"] if dtype != "f32" else [])]
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=True)
        if dtype != "f32":
            kl = re.search(r"Mean\s+KLD:\s*([0-9.eE+-]+)", done.stdout + done.stderr)
            print(f"{path.stem}, llama.cpp, cache {dtype}: KL {kl[1] if kl else 'not said'}", flush=True)


def divergence(reference: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Return the KL divergence of each position, in nats."""
    first, second = (log_softmax(logits.astype(np.float64)) for logits in (reference, got))
    found: np.ndarray = (np.exp(first) * (first - second)).sum(-1)
    return found


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the logarithms of probabilities."""
    apart = logits - logits.max(-1, keepdims=True)
    found: np.ndarray = apart - np.log(np.exp(apart).sum(-1, keepdims=True))
    return found


class Narrow(Arithmetic):
    """A cache in q4_0 whose keys are ``rotated`` or not, and whose values are; with steps that are ``searched`` for, or
    the largest of 32 values over -8."""

    def __init__(self, rotated: tuple[bool, bool], searched: bool) -> None:
        super().__init__("q4_0")
        self.__dict__.update(rotated=rotated, searched=searched, calls=itertools.count())

    def stored(self, x: torch.Tensor) -> torch.Tensor:
        """Return keys or values, which come in turns, as that cache has them; keys stay rotated, as queries are."""
        which = next(self.calls) % 2
        turned = spread_evenly(x.contiguous().numpy()) if self.rotated[which] else x.contiguous().numpy()
        found = in_nibbles(turned) if self.searched else nearest(turned)
        return torch.from_numpy(spread_evenly(found) if which and self.rotated[1] else found)

    def query(self, x: torch.Tensor) -> torch.Tensor:
        """Return queries as those keys are multiplied with them."""
        turned = torch.from_numpy(spread_evenly(x.contiguous().numpy())) if self.rotated[0] else x
        return in_blocks(turned, torch.float32)


def nearest(x: np.ndarray) -> np.ndarray:
    """Return x as codes of 4 bits and a step of float16 hold it, the value of largest magnitude exactly -8 steps."""
    blocks = x.reshape(-1, 32)
    steps = (
        (np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1) / -8).astype(np.float16).astype(np.float32)
    )
    codes = np.clip(np.floor(np.divide(blocks, steps, out=np.zeros_like(blocks), where=steps != 0) + 8.5), 0, 15) - 8
    return (codes * steps).reshape(x.shape).astype(np.float32)


def rotation(path: Path, options: argparse.Namespace) -> None:
    """Print the KL of caches in q4_0 by what is rotated and how steps are found, beside others."""
    card = find_card(str(path), offline=True)
    reference = Reference(card, mixed_windows(card, Tokenizer.from_card(card), options.prose))
    ways: dict[str, Arithmetic] = {
        "as it is": Narrow((False, False), searched=False),
        "keys rotated": Narrow((True, False), searched=False),
        "keys and values rotated": Narrow((True, True), searched=False),
        "and steps searched for": Narrow((True, True), searched=True),
    }
    for words, arithmetic in ways.items():
        print(f"{path.stem}, cache q4_0, {words}: KL {reference.computed(arithmetic).divergence:.4f}", flush=True)
    for dtype in ("q5_1", "q8_0"):
        print(f"{path.stem}, cache {dtype}: KL {reference.computed(Arithmetic(dtype)).divergence:.4f}", flush=True)


def memory(path: Path, options: argparse.Namespace) -> None:
    """Print the memory that is planned, and taken at the end of a context, with each cache."""
    for dtype in TYPES:
        command = [sys.executable, "-c", MEMORY, str(path), dtype, str(options.depth), str(options.threads)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        planned, most, taken = (value / 2**20 for value in json.loads(said.splitlines()[-1]))
        words = f"{planned:.0f} MB planned (at most {most:.0f}), {taken:.0f} taken, {taken / planned - 1:+.1%}"
        print(f"{path.stem}, cache {dtype}, {options.depth:,} tokens: {words}", flush=True)


def main() -> None:
    """Measure every file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prose", type=int, default=1024, help="tokens of prose")
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--only", choices=("speed", "divergence", "long", "rotation", "memory"), action="append")
    options = parser.parse_args()
    measured = {"speed": speeds, "divergence": divergences, "long": long, "rotation": rotation, "memory": memory}
    for path in options.models:
        for name in options.only or measured:
            measured[name](path, options)
            if name == "speed" and options.llama_cpp:
                theirs(path, options)


if __name__ == "__main__":
    main()
