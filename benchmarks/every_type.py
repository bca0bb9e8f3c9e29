"""Decoding of every GGUF type beside llama.cpp, in turns on files that hold one type alone.

    python benchmarks/synthetic.py --out FOLDER --model llama-0.3b --format all_q5_k all_iq1_s ...
    python benchmarks/every_type.py --llama-bench PATH --models FOLDER [--type q5_k iq1_s ...] [--json FILE]

A ratio is the median over the turns of rung / llama.cpp in that turn. Files that are missing are written first.
rung loads a file once and answers in one process; loading is timed apart, with the kernels compiled before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import rung
import synthetic

MODEL = "llama-0.3b"
#: The peer's environment: rung asks OpenMP for passive waiting in this process, which would slow llama.cpp down.
PEER = dict(os.environ)
TYPES = [kind.name.lower() for kind in synthetic.TYPES]


@dataclass(frozen=True)
class Row:
    """One type: 10^6 bytes of the file, tokens per second (medians), rung / llama.cpp, seconds to load, rung used."""

    type: str
    file_mb: float
    decode: float
    peer: float
    ratio: float
    load: float
    rung: str


def _llama(program: Path, path: Path, arguments: argparse.Namespace) -> float:
    """Tokens per second of llama-bench."""
    what = ["-p", "0", "-n", str(arguments.decode), "-d", str(arguments.prompt), "-t", str(arguments.threads)]
    done = subprocess.run(
        [str(program), "-m", str(path), *what, "-r", "1", "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
        env=PEER,
    )
    return float(json.loads(done.stdout)[0]["avg_ts"])


def measure(arguments: argparse.Namespace, kind: str) -> Row:
    """Both programs in turns on the file of a type."""
    path = arguments.models / f"{MODEL}-all_{kind}.gguf"
    if not path.exists():
        synthetic.write(path, synthetic.SHAPES[MODEL], f"all_{kind}")
    text = synthetic.prompt(arguments.prompt)
    context = arguments.prompt + arguments.decode + 8
    model = rung.load(str(path), context=context)
    list(model.generate(text, raw=True, temperature=0.0, max_tokens=4))  # compiles the kernels
    del model
    started = time.perf_counter()
    model = rung.load(str(path), context=context)
    seconds = time.perf_counter() - started
    ours, peer = [], []
    for _ in range(arguments.turns):
        peer.append(_llama(arguments.llama_bench, path, arguments))
        answer = model.generate(text, raw=True, temperature=0.0, max_tokens=arguments.decode + 1)
        list(answer)
        ours.append(answer.result["decode_tokens_per_second"])
    rungs = answer.result["report"]["rungs"]
    return Row(
        kind,
        path.stat().st_size / 1e6,
        statistics.median(ours),
        statistics.median(peer),
        statistics.median(a / b for a, b in zip(ours, peer, strict=True)),
        seconds,
        ", ".join(name for op, name in rungs.items() if op.startswith("decode_step")),
    )


def main() -> None:
    """Measure the types that were asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-bench", type=Path, required=True, help="llama.cpp's llama-bench")
    parser.add_argument("--models", type=Path, required=True, help="folder of benchmarks/synthetic.py")
    parser.add_argument("--type", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--prompt", type=int, default=16, help="tokens of the prompt, begin of text included")
    parser.add_argument("--decode", type=int, default=32, help="tokens decoded after it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    os.environ["RUNG_THREADS"] = str(arguments.threads)
    arguments.models.mkdir(parents=True, exist_ok=True)
    print(f"{arguments.threads} threads, {arguments.turns} turns, load average {os.getloadavg()[0]:.1f} at the start")
    print(
        "| type | file MB | decode t/s | llama.cpp | ratio | load s | whole tokens by |\n|---|---|---|---|---|---|---|"
    )
    rows = []
    for kind in arguments.type:
        rows.append(row := measure(arguments, kind))
        print(
            f"| {row.type} | {row.file_mb:.0f} | {row.decode:.1f} | {row.peer:.1f} | {row.ratio:.2f} "
            f"| {row.load:.2f} | {row.rung} |",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
