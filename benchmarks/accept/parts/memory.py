"""Compare the memory that plans predict with what a process takes; each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.accept.check import ROOT, Check, Target, share

ORDER, SECONDS = 7, 240
_NEAR = 0.05
_RUN = """
import json, sys
import rung
from rung.engine import planning
path, device, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = rung.load(path, device=device, context=context)
prompt = "one two three " * (context // 16)
for _ in model.generate(prompt, max_tokens=context // 4): pass
use = model.plan.placements[-1].memory
if device == "cpu":
    taken = planning.peak_memory()
else:
    import torch
    taken = torch.cuda.max_memory_reserved()
print(json.dumps({"planned": use.total, "most": use.most, "taken": taken}))
"""


def run(target: Target) -> Iterator[Check]:
    """Run the fixtures to their contexts, and files of ``synthetic.py`` where gguf is installed."""
    for path, context in _files(target):
        command = [sys.executable, "-c", _RUN, path, target.name, str(context)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            yield Check(path, False, {"error": done.stderr[-2000:]})
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        off = share(found["taken"] - found["planned"], found["planned"])
        holds = found["taken"] <= found["most"] and (target.small or abs(off) <= _NEAR)
        yield Check(f"{path} at {context}", holds, found | {"off": off})


def _files(target: Target) -> Iterator[tuple[str, int]]:
    yield str(ROOT / "tests" / "fixtures" / "gguf" / "llama-q4_0.gguf"), 128
    if target.small:
        return
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import synthetic

    for name, format, context in (("llama-0.1b", "q8_0", 512), ("llama-0.3b", "q4_0", 4096)):
        path = target.folder / f"{name}-{format}.gguf"
        if not path.exists():
            synthetic.write(path, synthetic.SHAPES[name], format)
        yield str(path), context
