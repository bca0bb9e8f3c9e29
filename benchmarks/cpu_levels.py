"""Speed of ``rung run`` at a level of CPU instructions beside llama.cpp built for the same level, in turns.

    python benchmarks/synthetic.py --out FOLDER --model llama-0.3b gemma-2b-32k
    python benchmarks/cpu_levels.py --level avx2 --llama-bench PATH --models FOLDER [--json FILE]

llama.cpp is the faster of its runs without and with flash attention (``-fa 0``, ``-fa 1``) in each turn. Decoding is
timed after 256 tokens and after none; a ratio is the median over the turns of rung / llama.cpp. Tokens are drawn, since
the likeliest ones of random weights repeat themselves and would be guessed. The last column is the share of the read
bandwidth that weights alone take while decoding after none, measured in the same turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import synthetic

#: Limits of torch and oneDNN that go with a level, so that no product of theirs uses more.
TORCH = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
DEPTHS = (0, 256)


def llama(bench: Path, path: Path, threads: int, *what: str) -> float:
    """Tokens per second of llama-bench, the better of without and with flash attention."""
    rates = []
    for attention in ("0", "1"):
        command = [str(bench), "-m", str(path), "-t", str(threads), "-r", "1", "-o", "json", "-fa", attention, *what]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rates.append(float(json.loads(done.stdout)[0]["avg_ts"]))
    return max(rates)


def rung(level: str, path: Path, threads: int, prompt: int, tokens: int) -> dict[str, Any]:
    """The result of ``rung run --json`` at a level."""
    limits = TORCH if not level.startswith("avx512") else {}
    environment = {**os.environ, **limits, **({"RUNG_CPU_LEVEL": level} if level else {})}
    text = synthetic.prompt(prompt) if prompt > 2 else "a"
    command = [sys.executable, "-m", "rung", "run", str(path), text, "--raw", "--json", "--temperature", "2"]
    command += ["--seed", "1"]
    command += ["--max-tokens", str(tokens), "--threads", str(threads), "--context", str(prompt + 2 * tokens)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def bandwidth(threads: int) -> float:
    """Bytes per second that threads read together from memory."""
    code = (
        "from rung.run.probes import rates, start; "
        f"start.start(kind='cpu', arch='x86_64', marks={{}}, threads={threads}); print(rates.bandwidth(size=1 << 30))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure(arguments: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Both programs in turns on one file."""
    level, threads, tokens = arguments.level, arguments.threads, arguments.decode
    for depth in DEPTHS:
        rung(level, path, threads, depth, 4)  # compiles the kernels, makes the proofs
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(arguments.turns):
        found["read"].append(bandwidth(threads))
        for depth in DEPTHS:
            peer = llama(arguments.llama_bench, path, threads, "-p", "0", "-n", str(tokens), "-d", str(depth))
            own = rung(level, path, threads, depth, tokens + 1)
            found[f"decode@{depth}"].append(own["decode_tokens_per_second"])
            found[f"peer decode@{depth}"].append(peer)
            if depth:
                found["prefill"].append(own["prefill_tokens_per_second"])
        found["peer prefill"].append(llama(arguments.llama_bench, path, threads, "-p", str(DEPTHS[-1]), "-n", "0"))
    row: dict[str, Any] = {"file": path.stem, "level": level, "turns": arguments.turns}
    for name in ("prefill", *(f"decode@{depth}" for depth in DEPTHS)):
        own, peer = found[name], found[f"peer {name}"]
        row[name] = statistics.median(own)
        row[f"peer {name}"] = statistics.median(peer)
        row[f"ratio {name}"] = statistics.median(a / b for a, b in zip(own, peer, strict=True))
    row["read GB/s"] = statistics.median(found["read"]) / 1e9
    shares = (d * path.stat().st_size / r for d, r in zip(found["decode@0"], found["read"], strict=True))
    row["share"] = statistics.median(shares)
    return row


def main() -> None:
    """Measure the files that were asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--level", default="", help="RUNG_CPU_LEVEL; the machine's own without")
    parser.add_argument("--llama-bench", type=Path, required=True, help="llama.cpp's llama-bench, built for that level")
    parser.add_argument("--models", type=Path, required=True, help="folder of benchmarks/synthetic.py")
    parser.add_argument("--model", nargs="+", default=["llama-0.3b", "gemma-2b-32k"])
    parser.add_argument("--format", nargs="+", default=["q4_0", "q4_k_m", "q8_0"])
    parser.add_argument("--decode", type=int, default=32, help="tokens decoded")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    print(
        f"level {arguments.level or 'of the machine'}, {arguments.threads} threads, {arguments.turns} turns, "
        f"load average {os.getloadavg()[0]:.1f} at the start"
    )
    print("| file | prefill | ratio | decode@256 | ratio | decode@0 | ratio | read GB/s | share |\n|" + "---|" * 9)
    rows = []
    for model in arguments.model:
        for name in arguments.format:
            row = measure(arguments, arguments.models / f"{model}-{name}.gguf")
            rows.append(row)
            cells = [row["file"]]
            for what in ("prefill", "decode@256", "decode@0"):
                cells += [f"{row[what]:.1f} ({row['peer ' + what]:.1f})", f"{row['ratio ' + what]:.2f}"]
            print(f"| {' | '.join(cells)} | {row['read GB/s']:.1f} | {row['share']:.2f} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
