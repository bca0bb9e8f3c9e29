"""Print the peak of memory of each step of ``rung quantize`` within a budget, as its progress names them (Linux).

    python benchmarks/quantization/memory_by_step.py MODEL OUT.gguf --size 84MB --text FILE [--from 700]

All arguments but ``--from`` go to ``rung quantize``. ``/proc`` says the peak, which is set back at each step, and which
part of it are anonymous memory and pages of files as the next step begins. ``--from``: only steps of at least so many
MB.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rung.cli.app import main as rung
from rung.cli.views import output

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Steps:
    """Print the peak of each step as the next one begins."""

    def __init__(self, least: int) -> None:
        self._least, self._label = least, "start"

    def begin(self, label: str) -> None:
        """End the step that runs, and begin another one."""
        if label == self._label:
            return
        said = _STATUS.read_text()
        megabytes = {name: int(count) >> 10 for name, count in re.findall(r"(\w+):\s+(\d+) kB", said)}
        if megabytes["VmHWM"] >= self._least:
            parts = f"then {megabytes['RssAnon']} MB anonymous, {megabytes['RssFile']} MB of files"
            print(f"{self._label}: peak {megabytes['VmHWM']} MB, {parts}", file=sys.stderr, flush=True)
        _RESET.write_text("5")
        self._label = label


class StepsBar(output.Bar):
    """Print the steps instead of showing them."""

    steps = Steps(0)

    def update(self, label: str, done: int, total: int) -> None:
        """Begin a step."""
        self.steps.begin(label)

    def __exit__(self, *exception: Any) -> None:
        self.steps.begin("after the bar")


def main() -> None:
    """Run the command with a bar of progress that prints the steps."""
    words = sys.argv[1:]
    if "--from" in words:
        at = words.index("--from")
        StepsBar.steps = Steps(int(words[at + 1]))
        del words[at : at + 2]
    try:
        with patch.object(output, "Bar", StepsBar):
            rung(["quantize", *words, "--quiet", "--json"])
    finally:
        StepsBar.steps.begin("the end")


if __name__ == "__main__":
    main()
