"""Take rights away from this process: files by Landlock, system calls by seccomp (Linux, x86_64 and aarch64).

A model's file, its template and a client's grammar are strangers' data. What a fault in their readers may reach is what
the process may reach: after the load its model and the folders of programs, to read, and its own caches, to write, but
no packages of bundles. It opens no connection. Processes that it starts have the same
rights. Layouts of <linux/landlock.h>, <linux/seccomp.h>.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rung.core.settings import CACHE
from rung.engine.model import Model
from rung.engine.scheduling.prefix_files import open_folder
from rung.models.adapters.roles import path_and_weight
from rung.server.child.every_thread import restrict_other_threads
from rung.server.protocol import Load

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every processor
_NO_NEW_PRIVILEGES, _FILTER_MODE, _ALL_THREADS = 38, 1, 1
_PATH_BENEATH, _ASK_VERSION, _ABSTRACT_SOCKETS = 1, 1, 1
#: Rights on files and folders: those to read, those of a file, and all by the first version that has them.
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_TRUNCATE, _CONTROL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _CONTROL
_ALL = {1: (1 << 13) - 1, 2: 1 << 13, 3: _TRUNCATE, 5: _CONTROL}
_TCP = {4: 3}  # bind and connect
#: ``seccomp`` and AUDIT_ARCH of a processor, and its numbers of system calls that nobody needs who computes: sockets,
#: other processes' memory, file systems, keys, modules, and bpf, perf_event_open and userfaultfd.
_ARCHES: dict[str, tuple[Any, ...]] = {
    "x86_64": (
        317,
        0xC000003E,
        *((41, 42, 43, 49, 50, 288), (101, 310, 311), (165, 166, 155, 161, 308, 272, 304)),
        *((248, 249, 250), (175, 313, 246, 320, 169), (321, 298, 323)),
    ),
    "aarch64": (
        277,
        0xC00000B7,
        *((198, 203, 202, 200, 201, 242), (117, 270, 271), (40, 39, 41, 51, 268, 97, 265)),
        *((217, 218, 219), (105, 273, 104, 294, 142), (280, 241, 282)),
    ),
}
_ON_EVERY_PROCESSOR = (425, 426, 427, 428, 429, 430, 438)  # io_uring, mounts, files of other processes
#: Numbers of x86_64's second set of system calls begin here.
_SECOND_SET = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
#: Folders of programs, and files that the C library reads.
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/opt", "/nix/store", "/proc", "/sys", "/dev")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/nsswitch.conf")
_WRITABLE_DEVICES = ("/dev/null", "/dev/zero")
#: Folders of ``RUNG_CACHE`` that are written after the load: compiled kernels, what was found out about them, and
#: temporary files.
_KERNELS, _PROOFS, _TEMPORARY = "kernels", "proofs", "tmp"


def enter(load: Load, model: Model) -> str:
    """Take the rights away that a loaded model does not need; return what is left, or why all is."""
    if any(placement.device != "cpu" for placement in model.plan.placements) or _is_simulated(load):
        return "none: drivers of a card open files and devices of their own"
    if sys.platform != "linux":
        return f"none: {platform.system()} has no Landlock and no seccomp"
    options, found = load.options, []
    named = (
        load.model,
        options.get("draft"),
        *(path for path, _ in map(path_and_weight, options.get("adapters") or ())),
    )
    readable = {Path(str(each)) for each in (*named, getattr(model.card, "path", "")) if each}
    try:
        left = close_files([*readable, *_targets(readable)], _writable(options.get("prefix_cache"), load.slots))
        found.append("reads its model and programs, writes its caches" + (f", but for {left} threads" if left else ""))
    except OSError as error:
        found.append(f"all files, as Landlock fails: {error.strerror}")
    try:
        close_system_calls()
        found.append("no network")
    except OSError as error:
        found.append(f"network, as seccomp fails: {error.strerror}")
    return "; ".join(found)


def _is_simulated(load: Load) -> bool:
    return str(load.options.get("device") or "").startswith("sim:")


def _targets(paths: Iterable[Path]) -> list[Path]:
    """Return the files that links in folders lead to, as in a cache of the hub."""
    links = (each for path in paths if path.is_dir() for each in path.rglob("*") if each.is_symlink())
    return [each.resolve() for each in links]


def _writable(prefix_cache: str | None, slots: str) -> list[Path]:
    """Return the folders of caches, with one for temporary files, which go there from now on."""
    kernel_cache, proofs, temporary = caches = [CACHE.read() / name for name in (_KERNELS, _PROOFS, _TEMPORARY)]
    with contextlib.suppress(OSError):
        temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    for each in (kernel_cache, proofs):
        with contextlib.suppress(OSError):
            each.mkdir(parents=True, exist_ok=True)
    kernels = os.environ.get("NUMBA_CACHE_DIR", "")
    prefixes = [open_folder(prefix_cache)[0]] if prefix_cache else []
    saved = [open_folder(slots, "--slot-save-path")[0]] if slots else []
    return [*caches, *prefixes, *saved, *([Path(kernels)] if kernels else ())]


def _call(number: int, *arguments: object) -> int:
    """Make a system call. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    values = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    found = int(libc.syscall(ctypes.c_long(number), *values))
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def _by_version(table: dict[int, int], version: int) -> int:
    found = 0
    for first, bits in table.items():
        found |= bits if version >= first else 0
    return found


def close_files(readable: Iterable[Path], writable: Iterable[Path]) -> int:
    """Leave all threads nothing but to read what is below ``readable`` and the folders of programs, and to change what
    is below ``writable``; return how many threads keep their rights, as they did not answer in time. Raises
    ``OSError`` where the kernel has no Landlock.
    """
    version = _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    rights = _by_version(_ALL, version)
    scoped = _ABSTRACT_SOCKETS if version >= 6 else 0
    # "QQQ" is the struct of version 6; earlier kernels take a longer one whose end is zero
    ruleset = _call(_CREATE_RULESET, struct.pack("QQQ", rights, _by_version(_TCP, version), scoped), 24, 0)
    try:
        read = _EXECUTE | _READ | _LIST
        for path in (*_programs(), *readable):
            _allow(ruleset, path, read & rights)
        for path in (*map(Path, _WRITABLE_DEVICES), *writable):
            _allow(ruleset, path, rights)
        left = restrict_other_threads(ruleset)  # before this one, which may have to compile what tells them
        _forbid_new_privileges()
        _call(_RESTRICT_SELF, ruleset, 0)
        return left
    finally:
        os.close(ruleset)


def _programs() -> list[Path]:
    """Return where Python, its packages and libraries are."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    own = (sys.prefix, sys.base_prefix, *sys.path, sys.pycache_prefix or "")
    paths = (*_SYSTEM, *_SYSTEM_FILES, *own, *libraries)
    return [Path(each) for each in paths if each]


def _allow(ruleset: int, path: Path, rights: int) -> None:
    """Add a rule for a file, or a folder and all below it, if it is there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not path.is_dir():
                rights &= _OF_FILES
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, file), 0)
        finally:
            os.close(file)


def _forbid_new_privileges() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def close_system_calls() -> None:
    """Refuse system calls of ``_ARCHES`` to all threads. Raises ``OSError`` where the kernel or the processor has no
    filter for them."""
    if (known := _ARCHES.get(platform.machine())) is None:
        raise OSError(errno.ENOSYS, f"no table of system calls for {platform.machine()}")
    number, arch, *groups = known
    program = _filter(arch, [each for group in (*groups, _ON_EVERY_PROCESSOR) for each in group])
    code = ctypes.create_string_buffer(program)
    head = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    _forbid_new_privileges()
    _call(number, _FILTER_MODE, _ALL_THREADS, head)


def _filter(arch: int, refused: Sequence[int]) -> bytes:
    """Return a program of the kernel's filter machine: offset 4 has the architecture, 0 the number of a call."""
    last = len(refused) + 4

    def to_end(code: int, value: int, index: int, *, if_true: bool) -> bytes:
        jump = last - index  # to the instruction behind ``last``, which refuses
        return struct.pack("HBBI", code, *((jump, 0) if if_true else (0, jump)), value)

    lines = [
        struct.pack("HBBI", _LOAD, 0, 0, 4),
        to_end(_EQUAL, arch, 1, if_true=False),
        struct.pack("HBBI", _LOAD, 0, 0, 0),
        to_end(_AT_LEAST, _SECOND_SET, 3, if_true=True),
    ]
    lines += [to_end(_EQUAL, each, index, if_true=True) for index, each in enumerate(refused, 4)]
    lines += [struct.pack("HBBI", _RETURN, 0, 0, value) for value in (_ALLOW, _REFUSE)]
    return b"".join(lines)
