"""Memory and speed of a model that is packed beside one that stays as its file stores it.

    python benchmarks/short_memory.py MODEL.gguf [--turns 3] [--tokens 32] [--threads 2]

Each turn runs both in processes of their own, one after the other: with all memory, and with a budget of what the plan
of the packed model needs less its packing, so that ``rung`` chooses ``numba.mapped`` by itself. Prints the predicted
bytes, the largest resident size, its anonymous part (which a system without swap cannot take back) and the tokens a
second of the middle turn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

_RUN = """
import json, re, sys, time
import rung
path, memory, tokens, threads = sys.argv[1], sys.argv[2] or None, int(sys.argv[3]), int(sys.argv[4])
model = rung.load(path, memory=memory, context=256, threads=threads)
list(model.generate("The capital of France is", max_tokens=2))
count = 0
for _ in model.generate("The capital of France is", max_tokens=tokens, temperature=0):
    start = time.perf_counter() if not count else start
    count += 1
rate = (count - 1) / (time.perf_counter() - start)
status = open("/proc/self/status").read()
use = model.plan.placements[0].memory
print(json.dumps({
    "packing": model.plan.packing, "predicted": use.total, "rate": rate, "torch": "torch" in sys.modules,
    "peak": 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]),
    "anonymous": 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", status)[1]),
}))
"""


def run(path: str, memory: str, tokens: int, threads: int) -> dict[str, float]:
    """Return the figures of one run in a process of its own."""
    command = [sys.executable, "-c", _RUN, path, memory, str(tokens), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def tight(path: str) -> str:
    """The smallest budget, in steps of 8 MB, for which the plan is no longer packed and still fits; empty for none."""
    import rung

    most = rung.plan(path, context=256)
    budget = most.placements[0].memory.most
    while True:
        budget -= 8 << 20
        try:
            found = rung.plan(path, context=256, memory=budget)
        except rung.RungError:
            return ""
        if found.packing != "r16":
            return str(budget)


def main() -> None:
    """Run both in turns, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    budgets = {"packed": "", "as stored": tight(options.model)}
    if not budgets["as stored"]:
        raise SystemExit("no budget makes a plan that is not packed: the packing is no larger than the file")
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in budgets}
    for _ in range(options.turns):
        for name, memory in budgets.items():
            runs[name].append(run(options.model, memory, options.tokens, options.threads))
    for name, found in runs.items():
        middle = sorted(found, key=lambda each: each["rate"])[len(found) // 2]
        sizes = ", ".join(f"{key} {middle[key] / 2**20:.0f} MB" for key in ("predicted", "peak", "anonymous"))
        with_torch = ", with torch" if middle["torch"] else ""
        print(f"{name:10} {middle['packing']:7} {sizes}, {middle['rate']:.1f} tokens/s{with_torch}")


if __name__ == "__main__":
    main()
