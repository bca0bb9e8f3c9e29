"""Instructions that one decoded token takes on an ARM core, beside llama.cpp built for it, counted in an emulator.

    python -m benchmarks.arm_instructions_per_token --llama-bench PATH MODEL.gguf [--core cortex-a76] [--tokens 4 12]

qemu (Debian's ``qemu-user``, which loads plugins) runs both with a plugin that adds up the instructions of the blocks
that are executed, one thread each. The figure is the difference between two runs that decode so many tokens, over the
difference of the tokens: starts and loads cancel out. llama-bench is cross-compiled with ``-mcpu=CORE`` and
``GGML_OPENMP=OFF``. rung runs in the system of ``python -m tests.emulation.system``; its kernels are compiled and
proved by a run that is not counted.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.instructions_per_token import DECODE
from tests.emulation import system
from tests.emulation.guest import SOCKET
from tests.emulation.test_cores import compiler_environment

#: The plugin. Its functions are qemu's, of version 1 of the interface.
_PLUGIN = r"""
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);

int qemu_plugin_version = 1;
static uint64_t count;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &count, qemu_plugin_tb_n_insns(block));
}

static void ended(qemu_plugin_id_t id, void *unused)
{
    fprintf(stderr, "Total instructions: %" PRIu64 "\n", count);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
"""


def built(folder: Path) -> Path:
    """Compile the plugin in ``folder``; return its path."""
    source, plugin = folder / "count.c", folder / "count.so"
    source.write_text(_PLUGIN)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", plugin, source], check=True)
    return plugin


def counted(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return the instructions that a command executes."""
    done = subprocess.run(command, capture_output=True, text=True, env=dict(environment))
    found = re.findall(r"Total instructions: (\d+)", done.stderr)
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return int(found[-1])


@contextmanager
def compiling(level: str, folder: Path) -> Iterator[dict[str, str]]:
    """Compile for a level in a process outside of the emulator until the block ends; variables of those inside."""
    socket = str(folder / "socket")
    command = [sys.executable, "-m", "tests.emulation.compiler", socket, level]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=compiler_environment(folder)) as compiler:
        try:
            assert compiler.stdout is not None
            compiler.stdout.readline()
            yield {"RUNG_CACHE": str(folder / "cache"), SOCKET: socket}
        finally:
            compiler.kill()


def main() -> None:
    """Count both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    cores = {core.name: core for core in system.CORES.values() if core.arch == "aarch64"}
    parser.add_argument("--core", default="cortex-a76", choices=cores)
    parser.add_argument("--tokens", type=int, nargs=2, default=(4, 12), metavar=("FEW", "MANY"))
    parser.add_argument("--llama-bench", type=Path, required=True)
    options = parser.parse_args()
    few, many = options.tokens
    emulated = system.find()
    core = cores[options.core]
    with tempfile.TemporaryDirectory() as temporary, compiling(core.level, Path(temporary)) as variables:
        folder = Path(temporary)
        qemu = ["qemu-aarch64", "-plugin", str(built(folder)), "-cpu", core.model]
        root = ["-L", str(emulated.folder / f"root-{core.name}")]
        python = [*qemu, *root, str(emulated.folder / "root/usr/bin/python3.11")]
        inside = emulated.environment(variables) | {"EMULATED_PYTHON": emulated.command(core)[0]}
        emulated.run(core, ["-c", DECODE, str(options.model), str(few)], 3600, variables).check_returncode()
        own = [counted([*python, "-c", DECODE, str(options.model), str(each)], inside) for each in options.tokens]
        bench = [*qemu, *root, str(options.llama_bench), "-m", str(options.model), "-t", "1", "-p", "0", "-r", "1"]
        peer = [counted([*bench, "--no-warmup", "-fa", "0", "-n", str(each)], os.environ) for each in options.tokens]
    ours, theirs = ((last - first) / (many - few) / 1e6 for first, last in (own, peer))
    print(
        f"{options.model.stem}, {core.name}: {ours:.1f} million instructions a token, "
        f"llama.cpp {theirs:.1f}, ratio {ours / theirs:.2f}"
    )


if __name__ == "__main__":
    main()
