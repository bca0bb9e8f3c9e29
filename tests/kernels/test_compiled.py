"""The JIT: what it compiles for, its cache on disk, and threads."""

import ast
import ctypes
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from llvmlite import binding

from rung.kernels.cpu import compiled, target, thread_pool

_TWICE = """
import json
from rung.kernels.cpu.gemm.product import quantize
from rung.kernels.cpu.pack.decoding_kernels import decode_blocks
from rung.kernels.cpu.gemm.product import multiply
from rung.kernels.cpu.pack.native import NATIVE
made = [make(dtype) for make in (quantize, decode_blocks) for dtype in ("f32", "bf16")]
made += [multiply("q4_0", 1), multiply("q4_0", 8)]
made += NATIVE["q4_0"]
print(json.dumps([kernel.from_cache for kernel in made]))
"""


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )


def test_a_second_start_compiles_nothing_and_a_damaged_cache_costs_only_time(tmp_path):
    first, second = (_run(_TWICE, RUNG_CACHE=str(tmp_path)) for _ in range(2))
    assert json.loads(first.stdout) == [False] * 8
    assert json.loads(second.stdout) == [True] * 8
    for path in (*tmp_path.rglob("*.nbi"), *tmp_path.rglob("*.nbc")):
        path.write_bytes(b"damaged")
    third = _run(_TWICE, RUNG_CACHE=str(tmp_path))
    assert json.loads(third.stdout) == [False] * 8, third.stderr


def test_a_cache_of_another_processor_is_not_used(tmp_path):
    """As when a home is shared by unlike machines, or copied: what is compiled for one target is another's miss."""
    if target.arch() != "x86_64":
        pytest.skip("names of x86 processors")
    older = {
        "NUMBA_CPU_NAME": "nehalem",
        "NUMBA_CPU_FEATURES": "+64bit,+cx8,+sse,+sse2,+sse3,+ssse3,+sse4.1",
    }
    code = "from rung.kernels.cpu.pack.native import NATIVE\nprint([kernel.from_cache for kernel in NATIVE['q4_0']])"
    found = [_run(code, RUNG_CACHE=str(tmp_path), **env) for env in ({}, {}, older, older, {})]
    assert [each.stdout.strip() for each in found] == [
        str([cached] * 2) for cached in (False, True, False, True, True)
    ], found[2].stderr


@pytest.mark.parametrize("name", [pytest.param("sapphirerapids", marks=pytest.mark.slow), "a-processor-of-the-future"])
def test_a_name_newer_than_the_machine_adds_no_instructions(tmp_path, name):
    """The features are the machine's own whatever the name; LLVM takes an unknown name as the plainest processor."""
    code = (
        "import numpy as np; from rung.kernels.cpu.gemm.product import quantize\n"
        "from rung.kernels.cpu import target\n"
        "x, out = np.ones(64, np.float32), np.zeros(4096, np.uint8)\n"
        "quantize('f32').call(x.ctypes.data, 256, 1, out.ctypes.data, 1, 1, 8, 0, 2, 0)\n"
        "print(sorted(target.features()), out.sum())"
    )
    plain, named = _run(code, RUNG_CACHE=str(tmp_path)), _run(code, RUNG_CACHE=str(tmp_path), NUMBA_CPU_NAME=name)
    assert plain.returncode == 0, plain.stderr
    assert (named.returncode, named.stdout) == (0, plain.stdout), named.stderr


def test_a_full_disk_costs_the_cache_and_no_kernel(tmp_path):
    """A limit on the size of files stands for the disk; the kernel calls others that are kept too."""
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    kernel = "from rung.kernels.cpu.splat.tiles import composite; print(composite.from_cache)"
    done = _run(full + kernel, RUNG_CACHE=str(tmp_path))
    assert done.stdout.split() == ["False"], done.stderr


def test_threads_of_numba_are_left_to_the_program():
    """Rung's kernels have threads of their own, and Numba compiles nothing more once its number was changed."""
    code = "import os, rung.kernels.isa; print(os.environ['NUMBA_NUM_THREADS'])"
    assert _run(code, NUMBA_NUM_THREADS="1").stdout.split() == ["1"]


def test_a_cache_that_cannot_be_written_is_said():
    code = "from rung.kernels.cpu import target; print(target.configure.__wrapped__())"
    assert "cannot be written" in _run(code, RUNG_CACHE="/proc/rung").stdout


@pytest.mark.parametrize("configured", [True, False])
def test_kernels_without_a_cache_go_with_the_process_also_those_of_killed_children(tmp_path, configured):
    code = (
        "import os; from rung.kernels.cpu import target; from rung.run.worker import Job, run\n"
        f"{configured} and target.configure()\n"
        "job = Job.of('rung.kernels.cpu.target:configure')\n"
        "print([outcome.value for outcome in run([job, Job.of('tests.run.child_jobs:killed'), job], 60)])\n"
        "print(os.listdir(os.environ['TMPDIR']))"
    )
    done = _run(code, RUNG_CACHE="/proc/rung", TMPDIR=str(tmp_path), NUMBA_CACHE_DIR="")
    said, listed = map(ast.literal_eval, done.stdout.splitlines())
    assert [bool(each) for each in said] == [True, False, True], done.stderr
    assert len(listed) == 1  # all use the same one
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "there"),
    [
        ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, False),
        ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}, False),
        ({"NUMBA_CPU_FEATURES": "-avx512vnni"}, False),
        ({"NUMBA_DISABLE_JIT": "1"}, False),
    ],
)
def test_features_are_those_of_the_jit(monkeypatch, environment, there):
    for name in ("RUNG_CPU_LEVEL", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("avx512vnni" in target.features()) is there
    assert ("avx2" in target.features()) is (environment.get("NUMBA_CPU_NAME") == "haswell") or (
        "NUMBA_CPU_NAME" not in environment
    )


@pytest.mark.parametrize("numba", ["", "import numba"])
def test_avx_is_used_where_numba_turns_it_off(numba):
    code = f"""
from llvmlite import binding
binding.get_host_cpu_name = lambda: "ivybridge"
{numba}
import rung.kernels.isa
from numba.core import codegen
print("+avx," in codegen.get_host_cpu_features())
"""
    there = "+avx," in binding.get_host_cpu_features().flatten()
    assert _run(code).stdout.strip() == str(there)


@ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
def _take_part(words, thread, threads):
    counts = (ctypes.c_int64 * 3).from_address(ctypes.c_int64.from_address(words + 8).value)
    counts[thread] += 1
    counts[2] = threads


@pytest.mark.parametrize("openmp", [True, False])
def test_every_thread_takes_part_once(monkeypatch, openmp):
    if not openmp:
        monkeypatch.setattr(thread_pool, "openmp", lambda: None)
    counts = np.zeros(3, np.int64)
    thread_pool.run(ctypes.cast(_take_part, ctypes.c_void_p).value, [0, counts.ctypes.data], 2)
    assert counts.tolist() == [1, 1, 2]


def test_openmp_is_looked_for_again_once_torch_has_brought_it(monkeypatch):
    monkeypatch.setattr(thread_pool, "find_openmp", lambda with_torch: with_torch)
    with monkeypatch.context() as before:
        before.delitem(sys.modules, "torch", raising=False)
        assert not thread_pool.openmp()
    import torch  # noqa: F401

    assert thread_pool.openmp()


def test_openmp_is_torchs_own_where_packages_bring_copies(monkeypatch):
    class OpenedError(Exception):
        pass

    def opened(path):
        raise OpenedError(path)

    maps = ["/a/some.libs/libgomp-6a29c32d.so.1", "/a/torch/lib/libgomp.so.1"]
    monkeypatch.setattr(
        thread_pool.Path, "read_text", lambda path: "".join(f"0-1 r-xp 0 0:0 1 {each}\n" for each in maps)
    )
    monkeypatch.setattr(thread_pool.ctypes, "CDLL", opened)
    with pytest.raises(OpenedError, match="/torch/lib/"):
        thread_pool.find_openmp.__wrapped__(True)


def test_two_processes_that_choose_a_name_at_once_choose_two(tmp_path):
    caches = [compiled.caching.IndexDataCacheFile(str(tmp_path), "multiply", "stamp") for _ in range(2)]
    late = []
    write, caches[0]._save_data = caches[0]._save_data, lambda *arguments: late.append(arguments)
    first, caches[0]._save_index = caches[0]._save_index, lambda index: None
    caches[0].save(("q4_0", 1), "a kernel of one row")
    caches[0]._save_index = first
    caches[1].save(("q4_0", 8), "a kernel of eight rows")
    for call in late:
        write(*call)
    fresh = compiled.caching.IndexDataCacheFile(str(tmp_path), "multiply", "stamp")
    assert fresh.load(("q4_0", 8)) == "a kernel of eight rows"
