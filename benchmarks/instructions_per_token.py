"""Instructions that one decoded token takes, beside llama.cpp built for the same level, counted by valgrind.

    python benchmarks/instructions_per_token.py --llama-bench PATH MODEL.gguf [--level avx2] [--tokens 16 48]

The difference between two runs that decode so many tokens, a thread each, over the difference of the tokens: starts and
loads cancel out. rung samples and makes text of the tokens, llama-bench only decodes. Kernels are compiled and proved
by a run outside of valgrind, whose tool ``exp-bbv`` counts and does nothing else. Valgrind knows AVX2 and not AVX-512:
levels above it cannot be counted. A run takes 1 to 5 minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

#: Counts instructions, those of each thread for itself, and writes no file.
_VALGRIND = ("valgrind", "--tool=exp-bbv", "--instr-count-only=yes", "--bb-out-file=/dev/null")
_VALGRIND += ("--pc-out-file=/dev/null", "--trace-children=no")
#: Limits of other libraries of the process, so that they use no more than AVX2.
_LIMITS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}
#: What is counted of rung: a model is loaded, and so many tokens are decoded.
DECODE = """
import sys, rung
model, tokens = sys.argv[1], int(sys.argv[2])
answer = rung.load(model, context=128, threads=1, offline=True).generate("a", raw=True, max_tokens=tokens)
for piece in answer:
    pass
if len(answer.tokens) != tokens:
    sys.exit(f"the answer ended after {len(answer.tokens)} tokens: ask for fewer")
"""


def counted(command: list[str], environment: dict[str, str]) -> int:
    """Return the instructions that a command executes in all its threads."""
    done = subprocess.run([*_VALGRIND, *command], capture_output=True, text=True, env=os.environ | environment)
    found = re.findall(r"Total instructions: (\d+)", done.stderr)
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return sum(map(int, found))


def rung(level: str, model: Path, tokens: int) -> int:
    """Return the instructions of rung; kernels are compiled and proved before."""
    command = [sys.executable, "-c", DECODE, str(model), str(tokens)]
    environment = {"RUNG_CPU_LEVEL": level, **_LIMITS}
    subprocess.run(command, check=True, capture_output=True, env=os.environ | environment)
    return counted(command, environment)


def llama(bench: Path, model: Path, tokens: int, attention: str) -> int:
    """Return the instructions of llama-bench, without (0) or with (1) flash attention."""
    what = ["-m", str(model), "-t", "1", "-p", "0", "-n", str(tokens), "-r", "1", "--no-warmup", "-fa", attention]
    return counted([str(bench), *what], {})


def main() -> None:
    """Count both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--level", default="avx2")
    parser.add_argument("--tokens", type=int, nargs=2, default=(16, 48), metavar=("FEW", "MANY"))
    parser.add_argument("--attention", default="0", choices=["0", "1"], help="flash attention of llama-bench")
    parser.add_argument("--llama-bench", type=Path, required=True)
    options = parser.parse_args()
    few, many = options.tokens

    def of_a_token(first: int, last: int) -> float:
        return (last - first) / (many - few) / 1e6

    own = of_a_token(*(rung(options.level, options.model, tokens) for tokens in options.tokens))
    peer = of_a_token(
        *(llama(options.llama_bench, options.model, tokens, options.attention) for tokens in options.tokens)
    )
    print(
        f"{options.model.stem}, {options.level}: {own:.1f} million instructions a token, "
        f"llama.cpp {peer:.1f}, ratio {own / peer:.2f}"
    )


if __name__ == "__main__":
    main()
