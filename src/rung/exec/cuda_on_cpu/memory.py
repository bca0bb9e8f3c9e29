"""How much memory this process holds, where the system says it in a file; else by ``resource``."""

from __future__ import annotations

import contextlib

_STATUS, _RESET = "/proc/self/status", "/proc/self/clear_refs"


def resident() -> int:
    """Bytes that are resident now."""
    return _status("VmRSS:") or peak()


def peak() -> int:
    """The most bytes that were resident so far, or since ``reset_peak``; 0 where nobody knows."""
    return _status("VmHWM:") or _by_resource()


def reset_peak() -> None:
    """Has the peak begin at what is resident now, where the system can."""
    with contextlib.suppress(OSError), open(_RESET, "w", encoding="ascii") as file:
        file.write("5")


def available() -> int | None:
    """Bytes that programs may still take of the machine, swap apart; None where it does not say."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")), None)
    return None


def swap() -> int:
    """Bytes of swap that are free; 0 where the machine does not say."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("SwapFree:")), 0)
    return 0


def _status(name: str) -> int:
    with contextlib.suppress(OSError), open(_STATUS, encoding="utf-8", errors="replace") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(name)), 0)
    return 0


def _by_resource() -> int:
    try:
        import resource
    except ImportError:
        return 0
    import sys

    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024
