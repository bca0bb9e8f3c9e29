"""Instructions that one decoded token takes, beside llama.cpp built for the same level, counted by valgrind.

    python benchmarks/instructions_per_token.py --level avx2 --llama-bench PATH MODEL.gguf

The difference between a run of 48 and one of 16 tokens, a thread each, divided by 32: starts and loads cancel out.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

FEW, MANY = 16, 48


def counted(command: list[str], environment: dict[str, str]) -> int:
    """Instructions that a command executes."""
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--trace-children=no"]
    done = subprocess.run([*tool, *command], capture_output=True, text=True, env={**os.environ, **environment})
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return int(found[1])


def rung(level: str, model: Path, tokens: int) -> int:
    """Instructions of ``rung run``; kernels are compiled and proved before."""
    command = [sys.executable, "-m", "rung", "run", str(model), "a", "--raw", "--json", "--temperature", "0"]
    command += ["--threads", "1", "--context", "128", "--max-tokens", str(tokens)]
    environment = {"RUNG_CPU_LEVEL": level, "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    return counted(command, environment)


def llama(bench: Path, model: Path, tokens: int) -> int:
    """Instructions of llama-bench, without flash attention."""
    what = ["-m", str(model), "-t", "1", "-p", "0", "-n", str(tokens), "-r", "1", "--no-warmup", "-fa", "0"]
    return counted([str(bench), *what], {})


def main() -> None:
    """Count both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--level", default="avx2")
    parser.add_argument("--llama-bench", type=Path, required=True)
    arguments = parser.parse_args()
    own, peer = (
        (run(MANY) - run(FEW)) / (MANY - FEW) / 1e6
        for run in (
            lambda tokens: rung(arguments.level, arguments.model, tokens),
            lambda tokens: llama(arguments.llama_bench, arguments.model, tokens),
        )
    )
    print(
        f"{arguments.model.stem}, {arguments.level}: {own:.1f} million instructions a token, "
        f"llama.cpp {peer:.1f}, ratio {own / peer:.2f}"
    )


if __name__ == "__main__":
    main()
