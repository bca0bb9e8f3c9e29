"""Packages for other releases of Python, so that one bundle runs with all of them.

A compiled module has its release in its name (``x.cpython-312-x86_64-linux-gnu.so``), so that those of several releases
lie side by side, and all other files of a package are the same. What is not here, pip fetches.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath

from rung.bundle.packages import Member, Package, travels
from rung.core.errors import DownloadError, SoftwareMissing

#: Releases that Numba has packages for, from the first one that rung runs with.
RELEASES = ((3, 11), (3, 12), (3, 13), (3, 14))
_OWN = sys.version_info[:2]
_LAST_LINES = 3


def release_name(release: tuple[int, int]) -> str:
    """Return a release as people write it: 3.12."""
    return "{}.{}".format(*release)


def extension_of(release: tuple[int, int]) -> str:
    """Return how the names of modules end that are compiled for a release of Python, on this system."""
    own, other = ("{}{}".format(*each) for each in (_OWN, release))
    return EXTENSION_SUFFIXES[0].replace(own, other, 1)


def of_other_releases(
    packages: Sequence[Package], here: Sequence[Member], folder: Path, progress: Callable[[str, int, int], None]
) -> tuple[list[Member], list[tuple[int, int]], list[str]]:
    """Fetch with pip what ``packages`` have for other releases of Python and is not among the files ``here``, into
    ``folder``; return those files, the releases that are whole, and why others are not.

    Raises ``SoftwareMissing`` without pip.
    """
    if importlib.util.find_spec("pip") is None:
        raise SoftwareMissing(
            "pip is not installed; it fetches packages for other releases of Python.",
            [],
            ["python -m ensurepip", "the same command without --any-python"],
        )
    built = [each for each in packages if any(EXTENSION_SUFFIXES[0] in path.name for path, _ in each.files())]
    known, found, whole, problems = {name for name, _ in here}, list[Member](), [], []
    others = [each for each in RELEASES if each != _OWN]
    for index, release in enumerate(others):
        progress(f"fetching packages for Python {release_name(release)}", index, len(others))
        try:
            files = _fetched(built, release, folder / release_name(release))
        except DownloadError as error:
            reason = " ".join(error.facts)
            problems.append(f"The bundle has no packages for Python {release_name(release)}: {reason}")
            continue
        found += [(name, path) for name, path in files if name not in known]
        known |= {name for name, _ in files}
        whole.append(release)
    return found, whole, problems


def _fetched(packages: Sequence[Package], release: tuple[int, int], folder: Path) -> list[Member]:
    """Return the files of packages for a release, unpacked in ``folder``. Raises ``DownloadError``."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--python-version", release_name(release), "--dest", str(folder)]
    command += [f"{each.name}=={each.version}" for each in packages]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()[-_LAST_LINES:]
        raise DownloadError(
            f"pip could not fetch the packages for Python {release_name(release)}.",
            [f"pip: {line.strip()[:200]}" for line in lines],
        )
    found = []
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            names = [PurePosixPath(each) for each in archive.namelist() if not each.endswith("/")]
            for name in names:
                if travels(name) and not name.parts[0].endswith(".dist-info"):
                    found.append(("packages" / name, Path(archive.extract(str(name), folder / "files"))))
    return found
