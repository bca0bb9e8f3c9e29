"""Hold what the JIT compiles for, and its environment: the one place that sets either.

Nothing here imports Numba at module level, because its environment must be set before it is first imported.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rung.core.errors import UsageError
from rung.core.files import files_below
from rung.core.settings import CACHE, CPU_LEVEL
from rung.hardware import cpu_features, interpreter

if TYPE_CHECKING:
    from rung.kernels.isa.level import Architecture, Level

_proved = ""  # the level of ``use_level``
_wrong: list[str] = []  # levels with a kernel that was wrong in this process

#: How the names of folders begin that stand in for a cache that cannot be written.
_TEMPORARY = "rung-kernels-"


def features() -> frozenset[str]:
    """The processor features (LLVM's names) that compiled code may use.

    They are those of the JIT's target, not of the processor: ``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES``
    restrict it. Where another processor is named with features of its own, only the named features count; Numba
    takes the name ``generic`` for one without any.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return frozenset()
    _restrict()
    from llvmlite import binding

    name = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()
    changes = os.environ.get("NUMBA_CPU_FEATURES")
    if changes is None and name.lower() != "generic":
        return _host_features()
    return _changed(_host_features() if name == binding.get_host_cpu_name() else _least_features(), changes or "")


def _host_features() -> frozenset[str]:
    """The features of this machine: what LLVM finds, and what the system lists for all cores."""
    from llvmlite import binding

    found = frozenset(feature for feature, there in binding.get_host_cpu_features().items() if there)
    return _changed(found, cpu_features.own_features() or cpu_features.own_changes())


def _least_features() -> frozenset[str]:
    """The features that every processor of this kind has."""
    from rung.kernels.isa.levels import every

    least = (each.target(arch(), frozenset()) for each in every())
    return _changed(frozenset(), next((found.features for found in least if found), ""))


def _own_features() -> str:
    """Return changes to the features that LLVM finds, where not all cores have them."""
    changes = cpu_features.own_changes()
    if not changes:
        return cpu_features.own_features()
    from llvmlite import binding

    return f"{binding.get_host_cpu_features().flatten()},{changes}"


def doubts() -> list[str]:
    """Return sentences about variables of Numba that do not do what they seem to, or that this machine cannot do."""
    name, changes = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if not (name or changes) or not importlib.util.find_spec("llvmlite") or limit():
        return []
    from llvmlite import binding

    found = []
    if changes is None and name not in (binding.get_host_cpu_name(), "generic"):
        less = "".join(f"; to use less: export {CPU_LEVEL.variable}={each.name}" for each in lower_levels()[:1])
        found.append(
            f"NUMBA_CPU_NAME={name} alone changes no instruction: kernels use what this processor "
            f"({binding.get_host_cpu_name()}) has{less}"
        )
    lacking = sorted(features() - _host_features()) if changes else []
    if lacking:
        found.append(
            f"NUMBA_CPU_FEATURES names {', '.join(lacking)}, which this processor lacks: kernels may end the process; "
            "unset NUMBA_CPU_FEATURES"
        )
    return found


def _changed(features: frozenset[str], changes: str) -> frozenset[str]:
    """Return the features after changes as LLVM writes them: +dotprod,-i8mm."""
    found = set(features)
    for change in filter(None, (part.strip() for part in changes.split(","))):
        (found.add if change[0] == "+" else found.discard)(change[1:])
    return frozenset(found)


def arch() -> str:
    """The kind of processor that is compiled for: x86_64, aarch64 or another name."""
    return interpreter.arch()


def converts_halves() -> bool:
    """Return whether float16 is converted by instructions; on x86 processors before 2012 it is not."""
    needed = architecture().converts_halves
    return not needed or needed in features()


def use_level(name: str) -> None:
    """Compile for no more than that level in this process and its children, because a probe found higher ones wrong."""
    global _proved
    _proved = name
    level.cache_clear()
    _restrict()


def limit() -> str:
    """Return the level that limits what is compiled: the lower of the user's and that of ``use_level``, or an empty
    string."""
    requested = CPU_LEVEL.read()
    if not requested or not _proved:
        return requested or _proved
    from rung.kernels.isa.levels import named

    return min(requested, _proved, key=lambda name: named(name).rank)


def check_limit() -> None:
    """Raise ``UsageError`` where ``RUNG_CPU_LEVEL`` names no level, or one that this processor does not have."""
    if CPU_LEVEL.read() and importlib.util.find_spec("llvmlite"):
        from rung.kernels.isa.levels import named

        named(CPU_LEVEL.read())
        _restrict()


def levels() -> list[Level]:
    """The levels of CPU instructions that the compiler may use, the highest first; see ``rung.kernels.isa.levels``."""
    from rung.kernels.isa.levels import every, named

    there, most = features(), named(limit()).rank if limit() else every()[0].rank
    return [level for level in every() if level.rank <= most and level.target(arch(), there)]


@functools.cache
def level() -> Level:
    """The level that kernels are compiled for from now on."""
    found = levels()
    return next((each for each in found if each.name not in _wrong), found[-1])


def architecture() -> Architecture:
    """The kind of processor that is compiled for, and what all of its levels share."""
    return next(each.arch for each in level().targets if each.arch.name == arch())


def lower_levels() -> list[Level]:
    """The levels below the present one that have not been wrong, the highest first."""
    now = level()
    return [each for each in levels() if each.rank < now.rank and each.name not in _wrong]


def step_down_to(name: str) -> None:
    """Compile for a lower level from now on, because a kernel was wrong at all that are above it."""
    chosen = next(each for each in levels() if each.name == name)
    _wrong.extend(each.name for each in levels() if each.rank > chosen.rank and each.name not in _wrong)
    level.cache_clear()


def leave_for(name: str) -> None:
    """Compile for a lower level from now on: all that is compiled if Numba has not started, else ``step_down_to``."""
    environment = compiled_at(name)
    step_down_to(name)
    if "numba" not in sys.modules:
        _compile_for(environment["NUMBA_CPU_NAME"], environment["NUMBA_CPU_FEATURES"])


def compiled_at(name: str) -> dict[str, str]:
    """Return the environment in which a child compiles as this process does after ``leave_for(name)``."""
    lower = next(each for each in levels() if each.name == name).target(arch(), features())
    if "numba" in sys.modules or lower is None:
        return {**compiled_for(), CPU_LEVEL.variable: name}
    return {"NUMBA_CPU_NAME": lower.cpu, "NUMBA_CPU_FEATURES": lower.features, CPU_LEVEL.variable: name}


def compiled_for() -> dict[str, str]:
    """Return the environment in which a child compiles for the very processor that this process compiles for."""
    from llvmlite import binding

    return {
        "NUMBA_CPU_NAME": os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name(),
        "NUMBA_CPU_FEATURES": os.environ.get("NUMBA_CPU_FEATURES") or binding.get_host_cpu_features().flatten(),
    }


def _restrict() -> None:
    """Compile for no more than ``limit()``, unless the compiler's target is set already.

    LLVM does not find out whether an ARM processor has products of bytes, or what only some cores have: the compiler
    is told.
    Raises ``UsageError`` where the level has no such name, or needs what the processor lacks.
    """
    name, own = limit(), _own_features()
    if os.environ.get("NUMBA_CPU_FEATURES", own) != own:
        return
    if not name:
        if own and not os.environ.get("NUMBA_CPU_NAME"):
            _compile_for(None, own)
        return
    from rung.kernels.isa.levels import named

    lowered = named(name).target(arch(), _host_features())
    if lowered is None:
        raise UsageError(
            f"{CPU_LEVEL.variable}={name} is more than this processor has",
            ways_out=[f"unset {CPU_LEVEL.variable}   # rung finds the highest level by itself"],
            code="cpu-level",
        )
    _compile_for(lowered.cpu, lowered.features)


def _compile_for(cpu: str | None, features: str) -> None:
    """Set the compiler's target; no ``cpu`` is the processor that is there."""
    if cpu:
        os.environ["NUMBA_CPU_NAME"] = cpu
    os.environ["NUMBA_CPU_FEATURES"] = features
    if "numba" in sys.modules:  # has read its environment already
        config = sys.modules["numba"].config
        config.CPU_NAME, config.CPU_FEATURES = cpu, features


@functools.cache
def sources_hash() -> str:
    """A hash of the kernels' source and of the compiler's versions: what a compiled kernel depends on.

    Numba looks only at the file of a function, not at the modules whose instructions it uses.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:16]


@functools.cache
def configure() -> str:
    """Set up Numba; importing ``rung.kernels.isa`` calls it.

    Compiled kernels are kept in the cache folder under ``sources_hash()``. Returns a note when that folder
    cannot be written (kernels are then kept as long as the process and shared with its children), else an empty
    string.
    """
    note = ""
    _restrict()
    folder = _kernels() / sources_hash()
    if not _writable(folder):
        note = f"{folder} cannot be written: kernels are compiled again each time"
        folder = _temporary()
    _drop_damaged(folder)
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    _use_avx()
    if "numba" in sys.modules:  # somebody else's program: the environment has been read already
        sys.modules["numba"].config.CACHE_DIR = str(folder)
    return note


def _use_avx() -> None:
    """Have Numba compile for AVX on Sandy and Ivy Bridge, too, for which LLVM once compiled it badly: kernels are
    proved with it. The user's own ``NUMBA_ENABLE_AVX`` counts."""
    if "NUMBA_ENABLE_AVX" in os.environ or not importlib.util.find_spec("llvmlite"):
        return
    from llvmlite import binding

    if binding.get_host_cpu_name() in ("sandybridge", "ivybridge"):
        os.environ["NUMBA_ENABLE_AVX"] = "1"
        if "numba" in sys.modules:
            sys.modules["numba"].config.ENABLE_AVX = 1


def shared() -> dict[str, str]:
    """Return environment variables for a child that compiles for the same target, into the same folder: a child that is
    killed cannot remove a folder of its own."""
    folder = {} if _writable(_kernels()) else {"NUMBA_CACHE_DIR": str(_temporary())}
    if _wrong:
        return folder | {CPU_LEVEL.variable: level().name} | compiled_for()
    return folder | ({CPU_LEVEL.variable: limit()} if _proved else {})


def _kernels() -> Path:
    return CACHE.read() / "kernels"


@functools.cache
def _temporary() -> Path:
    """A folder that is gone with the process that made it, which may be the parent of this one."""
    inherited = Path(os.environ.get("NUMBA_CACHE_DIR", ""))
    if inherited.name.startswith(_TEMPORARY) and _writable(inherited):
        return inherited
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _drop_damaged(folder: Path) -> None:
    """Deletes a cache with a file that is no pickle: Numba would raise where a kernel is first used."""
    for path in files_below(folder):
        if path.suffix not in (".nbi", ".nbc"):
            continue
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # replaced since it was listed
            if file.read(1) != b"\x80":
                shutil.rmtree(folder, ignore_errors=True)
                return


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
