"""Kernels that are called through their address: compiled at first use, or loaded from the cache on disk.

All kernels of one kind have one signature of int64 arguments, so that whoever calls them (a whole token, say) is
compiled once and not for each mix of formats.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

from numba import cfunc, types
from numba.core import caching, compiler, compiler_machinery, registry, typed_passes
from numba.core.runtime import rtsys

from rung.core.shield import shielded
from rung.core.types import resolve
from rung.core.version import PACKAGE
from rung.kernels.cpu import target

P = ParamSpec("P")


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _ForKernels(typed_passes.NativeLowering):
    """Lower a function that kernels call to code that is linked into theirs, and to no machine code of its own.

    That, and a wrapper for calls from Python, took a quarter of the time in which kernels are compiled. Numba knows
    the function by what Python would call: here a method of a dictionary of its own, which refuses every argument.
    """

    _name = "lower_for_kernels"

    def run_pass(self, state: Any) -> bool:
        """See Numba's."""
        flags = state.flags
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        super().run_pass(state)
        known_as: dict[str, int] = {}
        state["cr"] = state["cr"]._replace(cfunc=known_as.update)
        state.targetctx.insert_user_function(known_as.update, state["cr"].fndesc, [state.library])
        return True


class _Function(compiler.Compiler):
    """Compile a function that kernels call."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's pipeline, with ``_ForKernels``."""
        (pipeline,) = super().define_pipelines()
        lowering = typed_passes.NativeLowering
        pipeline.passes = [(_ForKernels if each is lowering else each, why) for each, why in pipeline.passes]
        return [pipeline]


#: How functions are compiled that kernels call.
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "pipeline_class": _Function,
}

_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child must not wait for a thread of its parent that compiles
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
#: What is raised where the cache on disk is damaged or cannot be written.
_DAMAGED = (pickle.PickleError, EOFError, OSError, ValueError, ImportError, AttributeError, KeyError)

_keep = caching.Cache.save_overload


def _keep_if_possible(cache: Any, signature: Any, code: Any) -> None:
    """On a full disk the code is used all the same: Numba itself would raise where a kernel is first called."""
    with contextlib.suppress(OSError):
        _keep(cache, signature, code)


caching.Cache.save_overload = _keep_if_possible


def _save_by_key(file: Any, key: Any, data: Any) -> None:
    """Write a kernel under a name of its own, and then the index that names it.

    Numba numbers the files, and writes the index first. Two processes that compile at once then give two kernels the
    same number, and the index may name the one while the file holds the other.
    """
    digest = hashlib.sha256(repr((file._source_stamp, key)).encode()).hexdigest()
    name = f"{Path(file._index_name).stem}.{digest[:32]}.nbc"
    file._save_data(name, data)
    file._save_index({**file._load_index(), key: name})


caching.IndexDataCacheFile.save = _save_by_key
_key = caching.Cache._index_key


def _key_of_level(cache: Any, signature: Any, codegen: Any) -> Any:
    """A kernel of rung is another one at another level of CPU instructions, of which Numba knows nothing."""
    key = _key(cache, signature, codegen)
    return (*key, target.level().name) if cache._py_func.__module__.startswith("rung.") else key


caching.Cache._index_key = _key_of_level
_subpath = caching._CacheLocator.get_suitable_cache_subpath


def _subpath_of_package(locator: Any, path: str) -> str:
    """Keep kernels of rung by their place in the package, wherever that lies: a bundle carries them to another folder.
    What they are made of is in the name of the cache's folder, ``target.sources_hash``."""
    if Path(path).is_relative_to(PACKAGE):
        return "_".join(Path(path).parent.relative_to(PACKAGE.parent).parts)
    return str(_subpath(path))


caching._CacheLocator.get_suitable_cache_subpath = classmethod(_subpath_of_package)  # type: ignore[assignment]
_load = caching.Cache.load_overload


def _load_alone(cache: Any, signature: Any, context: Any) -> Any:
    """A kernel from the disk is machine code: it needs Numba's runtime, and nothing of what Numba registers to compile
    others, which takes 0.2 s of CPU and is done where a kernel is not found."""
    if not cache._py_func.__module__.startswith("rung."):
        return _load(cache, signature, context)
    rtsys.initialize(context)
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, context)


caching.Cache.load_overload = _load_alone


class Kernel:
    """A function of ``count`` int64 arguments that returns nothing, compiled when its address is first asked for."""

    def __init__(self, function: Callable[..., None], count: int) -> None:
        self.function, self.count = function, count
        self._compiled: Any = None
        self._address = 0

    @property
    def address(self) -> int:
        """Where the compiled code is."""
        return self._address or shielded(self._find)

    def _find(self) -> int:
        with _LOCK:
            if not self._address:
                self._compiled = self.compile()
                self._address = int(self._compiled.address)
            return self._address

    @functools.cached_property
    def call(self) -> Callable[..., None]:
        """The compiled code as a function of Python integers; it does not hold the interpreter's lock."""
        return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * self.count)(self.address)

    @property
    def from_cache(self) -> bool:
        """Return whether the compiled code came from the disk."""
        return bool(self.address and self._compiled.cache_hits)

    @property
    def on_disk(self) -> bool:
        """Return whether the compiled code lies in the cache on disk; nothing is compiled."""
        return shielded(self._is_on_disk)

    def _is_on_disk(self) -> bool:
        with _LOCK, contextlib.suppress(*_DAMAGED):
            kept = caching.FunctionCache(self.function)
            return kept.load_overload(self._signature, registry.cpu_target.target_context) is not None
        return False

    @property
    def name(self) -> str:
        """Where it stands, as ``module:name``."""
        return f"{self.function.__module__}:{self.function.__name__}"

    @property
    def _signature(self) -> Any:
        return types.void(*[types.int64] * self.count)

    def compile(self) -> Any:
        """Compile the function, or load it from the disk."""
        make = cfunc(self._signature, cache=True, error_model="numpy", boundscheck=False)
        try:
            return make(self.function)
        except _DAMAGED:  # an empty one, else none
            shutil.rmtree(os.environ["NUMBA_CACHE_DIR"], ignore_errors=True)
            return cfunc(self._signature, error_model="numpy", boundscheck=False)(self.function)


def per_level(make: Callable[P, Kernel]) -> Callable[P, Kernel]:
    """Keep what a function makes by its arguments and by the level of CPU instructions that it is made for."""

    @functools.cache
    def kernel_of(level: str, *arguments: Any) -> Kernel:
        return make(*arguments)

    @functools.wraps(make)
    def kept(*arguments: Any) -> Kernel:
        return kernel_of(target.level().name, *arguments)

    return kept  # type: ignore[return-value]


def kernel(count: int) -> Callable[[Callable[..., None]], Kernel]:
    """Makes a function of ``count`` int64 arguments a kernel."""
    return lambda function: Kernel(function, count)


def keep(name: str) -> bool:
    """Compiles the kernel of that name and keeps it on disk, if it is not there: a job for a child process. Returns
    whether it was."""
    found: Kernel = resolve(name)
    return found.from_cache
