"""Ask macOS for its kernel variables."""

from __future__ import annotations

_SYSCTL_SECONDS = 2.0


def sysctl(name: str) -> str:
    """The value of a macOS kernel variable, empty when there is none."""
    import subprocess  # not needed elsewhere, and not free to import

    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=_SYSCTL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
