"""Put every thread of this process under a Landlock ruleset, also threads of libraries that began before it.

Landlock restricts the thread that calls it, and those that it starts later. So each other one gets a signal whose
handler makes the call there, as libpsx does for capabilities. The handler is compiled: it makes two system calls and
counts, which is safe wherever a thread is interrupted. Linux on 64-bit processors; layouts of <signal.h>.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import threading
import time

import numpy as np

from rung.kernels.cpu.compiled import kernel
from rung.kernels.isa.generic import fetch_add
from rung.kernels.isa.scalar import read_i64, system_call
from rung.run.precompile import compile_apart

_RESTRICT_SELF, _NO_NEW_PRIVILEGES = 446, 38
#: ``prctl`` and ``rt_tgsigqueueinfo`` of a processor.
_NUMBERS = {"x86_64": (157, 297), "aarch64": (167, 240)}
_HAS_VALUE, _CALLS_GO_ON, _QUEUED = 4, 0x10000000, -1  # SA_SIGINFO, SA_RESTART, SI_QUEUE
#: Where the value of a signal is in ``siginfo_t``.
_VALUE = 24
#: Seconds in which threads have to answer.
_LIMIT_S = 2.0
#: What handlers read; one that answers too late reads it, too.
_words = np.zeros(4, np.int64)


@kernel(3)
def _restrict(_signal: int, info: int, _context: int) -> None:
    """Restrict this thread. The signal's value is the address of four numbers: the function ``syscall``, the number of
    ``prctl``, the ruleset, and how many threads are restricted."""
    words = read_i64(info + _VALUE)
    function, prctl, ruleset = read_i64(words), read_i64(words + 8), read_i64(words + 16)
    system_call(function, prctl, _NO_NEW_PRIVILEGES, 1)
    if system_call(function, _RESTRICT_SELF, ruleset, 0) == 0:
        fetch_add(words + 24, 1)


def restrict_other_threads(ruleset: int) -> int:
    """Restrict all threads but this one by the file descriptor of a Landlock ruleset; return how many are not, as they
    could not be signaled or did not answer in time. Raises ``OSError`` where none can be signaled."""
    if (numbers := _NUMBERS.get(platform.machine())) is None:
        raise OSError(errno.ENOSYS, f"no table of system calls for {platform.machine()}")
    compile_apart((_restrict,))
    prctl, send = numbers
    libc = ctypes.CDLL(None, use_errno=True)
    _words[:] = (ctypes.cast(libc.syscall, ctypes.c_void_p).value or 0, prctl, ruleset, 0)
    number, process = int(signal.SIGRTMAX), os.getpid()
    action = struct.pack("P128sixxxxP", _restrict.address, b"", _HAS_VALUE | _CALLS_GO_ON, 0)
    if libc.sigaction(number, action, None):
        raise OSError(ctypes.get_errno(), "sigaction")
    info = struct.pack("iiixxxxiiq96x", number, 0, _QUEUED, process, os.getuid(), _words.ctypes.data)
    known, ended, until = {threading.get_native_id()}, 0, time.monotonic() + _LIMIT_S
    while new := _threads() - known:  # those that start meanwhile may be children of one that is not restricted yet
        for each in new:
            ended += libc.syscall(send, process, each, number, info) < 0 and ctypes.get_errno() == errno.ESRCH
        known |= new
        while _words[3] < len(known) - 1 - ended and time.monotonic() < until:
            time.sleep(0.001)
    return max(0, min(len(known) - 1 - ended - int(_words[3]), len(known & _threads()) - 1))


def _threads() -> set[int]:
    return set(map(int, os.listdir("/proc/self/task")))
