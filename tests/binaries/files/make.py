"""Writes the files beside this one with NVIDIA's tools, and what cuobjdump lists of them.

usage: python tests/binaries/files/make.py --new FOLDER --old FOLDER --cuobjdump PATH --zstd PATH

``--new`` and ``--old`` hold bin/ptxas of CUDA 13 and of CUDA 12.9, the last that knows 5.0 to 7.2. fatbinary is that of
the PATH.
Each kernel is empty but for a return, so the files stay small.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests import device_code as fake

HERE = Path(__file__).parent
PTX = ".version {isa}\n.target sm_{target}\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\nret;\n}}\n"
NEW = "75 80 86 87 88 89 90 90a 100 100a 100f 103 103a 110 110f 120 120a 120f 121"
OLD = "50 52 53 60 61 62 70 72 75 80 90a 100 101a 120f"
PUT_IN: dict[Path, list[str]] = {}
LISTED = re.compile(r"(?:sm|compute)_(\d+[af]?)\.(cubin|ptx)\s*$", re.MULTILINE)


def container(file: Path, tools: Path, names: str, isa: str, options: list[str], folder: Path) -> None:
    """Writes one fatbin with a cubin for each target, and PTX of the first and the last, and what was put in."""
    specifications, targets = [], names.split()
    for target in targets:
        text, cubin = folder / f"{target}.ptx", folder / f"{target}.cubin"
        text.write_text(PTX.format(isa=isa, target=target))
        subprocess.run([tools / "bin/ptxas", f"-arch=sm_{target}", text, "-o", cubin], check=True)
        specifications.append(f"--image3=kind=elf,sm={target},file={cubin}")
        if target in (targets[0], targets[-1]):
            specifications.append(f"--image3=kind=ptx,sm={target},file={text}")
    subprocess.run(["fatbinary", "-64", *options, f"--create={file}", *specifications], check=True)
    PUT_IN[file] = sorted([f"sm_{name}" for name in targets] + [f"compute_{targets[0]}", f"compute_{targets[-1]}"])


def by_cuobjdump(tool: Path, file: Path) -> dict[str, dict[str, int]]:
    """Cubins and PTX of a file as cuobjdump lists them."""
    found: dict[str, dict[str, int]] = {}
    for name, option, prefix in (("cubins", "--list-elf", "sm_"), ("ptx", "--list-ptx", "compute_")):
        done = subprocess.run([tool, "-all", option, file], capture_output=True, text=True, check=False)
        counted = Counter(f"{prefix}{target}" for target, _ in LISTED.findall(done.stdout))
        found[name] = dict(sorted(counted.items()))
    return found


def main() -> None:
    """Writes all files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("new", "old", "cuobjdump", "zstd"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for mode in ("none", "speed", "size"):
            options = [f"--compress-mode={mode}", "--compress-all"]
            container(HERE / f"new-{mode}.fatbin", arguments.new, NEW, "9.0", options, folder)
        container(HERE / "old.fatbin", arguments.old, OLD, "8.8", ["--compress-all"], folder)
        plain, packed = folder / "bundle", folder / "bundle.zst"
        plain.write_bytes(fake.plain_bundle("gfx90a", "gfx942", payload=b"\x7fELF" + bytes(1000)))
        subprocess.run([arguments.zstd, "-q", "-19", plain, "-o", packed], check=True)
        data = packed.read_bytes()
        sizes = struct.pack("<IIQ", 24 + len(data), plain.stat().st_size, 0)
        (HERE / "bundle.zst.ccob").write_bytes(b"CCOB" + struct.pack("<HH", 2, 1) + sizes + data)
    for file, put_in in PUT_IN.items():
        answer = json.dumps({**by_cuobjdump(arguments.cuobjdump, file), "put in": put_in}, indent=1)
        file.with_name(f"{file.name}.json").write_text(answer + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
