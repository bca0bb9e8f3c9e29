"""Speed, memory and start of ``rung run`` beside llama.cpp, measured in turns on the same files.

    python benchmarks/synthetic.py --out FOLDER
    python benchmarks/language_model.py --llama-bench PATH --models FOLDER [--model NAME ...] [--json FILE]

For every file the two programs take turns; a ratio is the median over the turns of rung / llama.cpp in that turn, so
that what else the machine does meanwhile hits both. Decoding is timed at the same depth: after the prompt.
Memory is the resident peak of ``rung run`` against file + cache (f32) + 600 MB; the first token is timed from the
start of the process to the first byte on stdout, file in the page cache and kernels cached by an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import synthetic

MB = 1 << 20
ALLOWANCE = 600 * MB


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement: counts of tokens, threads and turns, and where the programs are."""

    llama_bench: Path
    rung: tuple[str, ...]
    prompt: int
    decode: int
    context: int
    threads: int
    turns: int


@dataclass(frozen=True)
class Row:
    """One file's figures: tokens per second (medians), ratios rung / llama.cpp, bytes, seconds."""

    file: str
    prefill: float
    peer_prefill: float
    prefill_ratio: float
    decode: float
    peer_decode: float
    decode_ratio: float
    peak: int
    allowed: int
    first_token: float


def _llama(settings: Settings, path: Path, *what: str) -> float:
    """Tokens per second of one test of llama-bench."""
    command = [str(settings.llama_bench), "-m", str(path), "-t", str(settings.threads), "-r", "1", "-o", "json", *what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def _rung(settings: Settings, path: Path, prompt: str, tokens: int) -> dict[str, Any]:
    """The result of ``rung run --json``."""
    options = ["--temperature", "0", "--threads", str(settings.threads), "--context", str(settings.context)]
    command = [*settings.rung, "run", str(path), prompt, "--raw", "--json", "--max-tokens", str(tokens), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def first_token(settings: Settings, path: Path) -> float:
    """Seconds from the start of the process to the first byte of the answer to a short prompt."""
    options = ["--temperature", "0", "--threads", str(settings.threads), "--context", str(settings.context)]
    command = [*settings.rung, "run", str(path), "hello", "--raw", "--quiet", "--max-tokens", "2", *options]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.stdout.read()
    if not first:
        raise SystemExit(f"{' '.join(command)} wrote nothing")
    return seconds


def cache_bytes(shape: synthetic.Shape, context: int) -> int:
    """Bytes of keys and values of that context in f32."""
    return 2 * 4 * shape.layers * shape.kv_heads * shape.head_dim * context


def measure(settings: Settings, path: Path, shape: synthetic.Shape) -> Row:
    """Both programs in turns on one file."""
    text = synthetic.prompt(settings.prompt)
    _rung(settings, path, text, settings.decode)  # reads the file, compiles the kernels, makes the proofs
    prefill, decode, peer_prefill, peer_decode, peaks = [], [], [], [], []
    for _ in range(settings.turns):
        peer_prefill.append(_llama(settings, path, "-p", str(settings.prompt), "-n", "0"))
        result = _rung(settings, path, text, settings.decode + 1)
        if result["prompt_tokens"] != settings.prompt:
            raise SystemExit(f"{path}: the prompt came out as {result['prompt_tokens']} tokens")
        peer_decode.append(_llama(settings, path, "-p", "0", "-n", str(settings.decode), "-d", str(settings.prompt)))
        prefill.append(result["prefill_tokens_per_second"])
        decode.append(result["decode_tokens_per_second"])
        peaks.append(result["peak_memory_bytes"])
    return Row(
        file=path.stem,
        prefill=statistics.median(prefill),
        peer_prefill=statistics.median(peer_prefill),
        prefill_ratio=statistics.median(a / b for a, b in zip(prefill, peer_prefill, strict=True)),
        decode=statistics.median(decode),
        peer_decode=statistics.median(peer_decode),
        decode_ratio=statistics.median(a / b for a, b in zip(decode, peer_decode, strict=True)),
        peak=max(peaks),
        allowed=path.stat().st_size + cache_bytes(shape, settings.context) + ALLOWANCE,
        first_token=min(first_token(settings, path) for _ in range(settings.turns)),
    )


HEADER = (
    "| file | prefill t/s | llama.cpp | ratio | decode t/s | llama.cpp | ratio | peak MB | allowed MB | first token s |"
    "\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    """The row as Markdown."""
    return (
        f"| {row.file} | {row.prefill:.1f} | {row.peer_prefill:.1f} | {row.prefill_ratio:.2f} "
        f"| {row.decode:.2f} | {row.peer_decode:.2f} | {row.decode_ratio:.2f} "
        f"| {row.peak / MB:.0f} | {row.allowed / MB:.0f} | {row.first_token:.2f} |"
    )


def main() -> None:
    """Measure the files that were asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-bench", type=Path, required=True, help="llama.cpp's llama-bench")
    parser.add_argument("--models", type=Path, required=True, help="folder of benchmarks/synthetic.py")
    parser.add_argument("--model", nargs="+", choices=synthetic.SHAPES, default=["gemma-2b", "llama-0.3b"])
    parser.add_argument("--format", nargs="+", choices=synthetic.FORMATS, default=["q4_0", "q4_k_m", "q8_0"])
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt, begin of text included")
    parser.add_argument("--decode", type=int, default=32, help="tokens decoded after it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    settings = Settings(
        llama_bench=arguments.llama_bench,
        rung=(sys.executable, "-m", "rung"),
        prompt=arguments.prompt,
        decode=arguments.decode,
        context=arguments.prompt + 2 * arguments.decode,
        threads=arguments.threads,
        turns=arguments.turns,
    )
    print(f"{settings.threads} threads, {settings.turns} turns, load average {os.getloadavg()[0]:.1f} at the start")
    print(HEADER)
    rows = []
    for model in arguments.model:
        for name in arguments.format:
            rows.append(measure(settings, arguments.models / f"{model}-{name}.gguf", synthetic.SHAPES[model]))
            print(line(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
