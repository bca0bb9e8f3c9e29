"""Compare terminals with and without ``rung exec``, of a program with a progress bar on stderr and lines on stdout.

    python benchmarks/exec_terminal.py [--lines 300]

The two streams have a pseudo-terminal each, so which of two writes was first is known only where they come apart. The
program writes lines with ``tqdm.write``, which wipes the bar, prints, and draws the bar again; the count is of lines
that stand alone on the screen. Then lines on stdout and stderr in turn: the count is of those in order. Both at once
and a millisecond apart, and again while every core is busy.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import os
import re
import struct
import subprocess
import sys
import termios

PAUSE = """
import sys, time
def pause(by):
    end = time.perf_counter() + by
    while time.perf_counter() < end: pass
"""
PROGRAMS = {
    "tqdm.write": (
        "from tqdm import tqdm\nfor i in tqdm(range({lines})):\n    tqdm.write(f'line {{i}}')\n    pause({apart})",
        lambda shown: sum(re.fullmatch(r"line \d+", line) is not None for line in shown),
    ),
    "in turn": (
        "for i in range({lines}):\n    print('out', i)\n    print('err', i, file=sys.stderr)\n    pause({apart})",
        lambda shown: sum(a.replace("out", "err") == b != a for a, b in itertools.pairwise(shown)),
    ),
}


def written(command: list[str]) -> bytes:
    """Return the bytes that a command writes to a terminal of 80 columns."""
    control, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
    os.close(end)
    pieces = []
    try:
        while piece := os.read(control, 1 << 16):
            pieces.append(piece)
    except OSError:  # nobody has it any more
        os.close(control)
    process.wait()
    return b"".join(pieces)


def screen(text: str) -> list[str]:
    """The lines that a terminal shows of text with carriage returns."""
    shown = []
    for line in text.split("\n"):
        cells = ""
        for part in line.split("\r"):
            cells = part + cells[len(part) :]
        shown.append(cells.rstrip())
    return shown


def main() -> None:
    """Prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=300)
    options = parser.parse_args()
    launcher = os.path.join(os.path.dirname(sys.executable), "rung")
    print(
        f"| of {options.lines} right | apart | plain | rung exec | rung exec, all cores busy |\n|---|---|---|---|---|"
    )
    for name, (program, right) in PROGRAMS.items():
        for apart in (0.0, 0.001):
            command = [sys.executable, "-c", PAUSE + program.format(lines=options.lines, apart=apart)]
            ways = [command, [launcher, "exec", "--", *command]]
            counts = [right(screen(written(way).decode())) for way in ways]
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
            counts.append(right(screen(written(ways[1]).decode())))
            for process in busy:
                process.kill()
            print(f"| {name} | {1e3 * apart:g} ms | {' | '.join(map(str, counts))} |", flush=True)


if __name__ == "__main__":
    main()
