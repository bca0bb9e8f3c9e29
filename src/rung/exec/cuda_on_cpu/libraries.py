"""Hold what is for GPUs alone: NCCL, the compiler, and ways of optimizers that torch chooses on GPUs."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

from rung.simulation.dispatch.patches import Patches

_COMPILER = "torch.compile was left out: what the program compiles runs as it is written"
_NCCL = "the program's processes talk through gloo: NCCL connects GPUs"
_EXTENSION = "the program builds CUDA code of its own ({}): it needs a GPU, and nothing stands in for it"


def install(say: Callable[[str], None], patches: Patches) -> None:
    """Puts it in force; ``say`` takes a sentence for the end of the run."""
    _install_triton(patches)
    _install_compiler(say, patches)
    _install_optimizers(patches)
    _install_extensions(say, patches)
    if torch.distributed.is_available():
        _install_processes(say, patches)


def _install_triton(patches: Patches) -> None:
    """Libraries that ask for Triton hear that it is not there, and take their other way. What uses it without asking
    is interpreted."""
    find = importlib.util.find_spec

    @functools.wraps(find)
    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name.partition(".")[0] == "triton" else find(name, package)

    patches.set(importlib.util, "find_spec", find_spec)
    os.environ.setdefault("TRITON_INTERPRET", "1")


def _install_compiler(say: Callable[[str], None], patches: Patches) -> None:
    """The compiler would write code for a GPU: what it returns runs as it is written, and that is said when it runs."""
    real, real_method = torch.compile, torch.nn.Module.compile

    @functools.wraps(real)
    def compiled(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compiled(function, **options)
        _compile_nothing()
        result = real(model, **options)
        if isinstance(model, torch.nn.Module):
            say(_COMPILER)
            return result

        @functools.wraps(result)
        def run(*args: Any, **kwargs: Any) -> Any:
            say(_COMPILER)
            return result(*args, **kwargs)

        return run

    def compile_module(module: torch.nn.Module, *args: Any, **options: Any) -> None:
        say(_COMPILER)
        _compile_nothing()
        real_method(module, *args, **options)

    patches.set(torch, "compile", compiled)
    patches.set(torch.nn.Module, "compile", compile_module)


@functools.cache
def _compile_nothing() -> None:
    torch.compiler.set_stance("force_eager")


def _install_optimizers(patches: Patches) -> None:
    """Optimizers go tensor by tensor where nobody asks for more, as on a processor: the same sums in the same order."""
    from torch.optim import optimizer

    from rung.run.torch_private import FOREACH_DEVICES, foreach_utils

    for module in (foreach_utils, optimizer):
        patches.set(module, FOREACH_DEVICES, list)


def _install_extensions(say: Callable[[str], None], patches: Patches) -> None:
    """Says why CUDA code cannot be compiled, before the compiler does so in its own words."""
    from torch.utils import cpp_extension

    build = cpp_extension.CUDAExtension
    load, inline = cpp_extension.load, cpp_extension.load_inline

    def extension(name: str, *args: Any, **options: Any) -> Any:
        say(_EXTENSION.format(name))
        return build(name, *args, **options)

    def loaded(name: str, sources: Any, *args: Any, **options: Any) -> Any:
        files = [sources] if isinstance(sources, str) else sources
        if options.get("with_cuda") or any(str(file).endswith((".cu", ".cuh")) for file in files):
            say(_EXTENSION.format(name))
        return load(name, sources, *args, **options)

    def loaded_inline(name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **options: Any) -> Any:
        if cuda_sources or options.get("with_cuda"):
            say(_EXTENSION.format(name))
        return inline(name, cpp_sources, cuda_sources, *args, **options)

    for name, function in (("CUDAExtension", extension), ("load", loaded), ("load_inline", loaded_inline)):
        patches.set(cpp_extension, name, function)


def _install_processes(say: Callable[[str], None], patches: Patches) -> None:
    """Processes that ask for NCCL are connected by gloo."""
    group = torch.distributed
    start, start_group, wait = group.init_process_group, group.new_group, group.barrier

    def by_gloo(backend: Any) -> Any:
        if isinstance(backend, str) and "nccl" in backend.lower():
            say(_NCCL)
            return "gloo"
        return backend

    def init_process_group(backend: Any = None, *args: Any, **options: Any) -> Any:
        options.pop("device_id", None)  # which NCCL is bound to
        return start(by_gloo(backend), *args, **options)

    def new_group(*args: Any, **options: Any) -> Any:
        if "backend" in options:
            options["backend"] = by_gloo(options["backend"])
        options.pop("device_id", None)
        return start_group(*args, **options)

    def barrier(*args: Any, device_ids: Any = None, **options: Any) -> Any:
        return wait(*args, **options)

    changed = {
        "init_process_group": init_process_group,
        "new_group": new_group,
        "barrier": barrier,
        "is_nccl_available": lambda: True,
    }
    for name, function in changed.items():
        for module in (group, group.distributed_c10d):
            patches.set(module, name, function)
