"""The speed that ``rung check`` predicts beside a measured one, after the rates of the device were measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.accept.check import ROOT, Check, Target, share

import rung

ORDER, SECONDS = 12, 480
_NEAR = 0.2
_TOKENS = 48


def run(target: Target) -> Iterator[Check]:
    """Calibrate, predict and decode. Small shapes run through the same code, and their speed is not judged."""
    if not target.small:
        command = [sys.executable, "-m", "rung", "calibrate", "--device", target.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        yield Check("rung calibrate", done.returncode == 0, {"said": (done.stdout + done.stderr)[-2000:]})
    for path in _files(target):
        model = rung.load(path, device=target.name, context=128 if target.small else 512)
        list(model.generate("one two", max_tokens=4, temperature=0))
        list(model.generate("three four five six", max_tokens=_TOKENS, temperature=0))
        report = model.report
        predicted, measured = (each["decode_tokens_per_second"] for each in (report.predicted, report.measured))
        off = share(measured - predicted, predicted)
        holds = None if target.small else abs(off) <= _NEAR
        yield Check(path, holds, {"predicted": predicted, "measured": measured, "off": off})


def _files(target: Target) -> Iterator[str]:
    if target.small:
        yield str(ROOT / "tests" / "fixtures" / "gguf" / "llama-q4_0.gguf")
        return
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import synthetic

    for name, format in (("llama-0.3b", "q4_0"), ("llama-0.3b", "q8_0")):
        path = target.folder / f"{name}-{format}.gguf"
        if not path.exists():
            synthetic.write(path, synthetic.SHAPES[name], format)
        yield str(path)
