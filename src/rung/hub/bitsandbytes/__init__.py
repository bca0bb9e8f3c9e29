"""Programs of bitsandbytes, unchanged, on rung's kernels: ``install()`` puts them under ``torch.ops.bitsandbytes``.

What those programs store stays what it was, to the bit: codes, scales, nested states, saved files. On a CPU every
operator is rung's, and layers no longer repack their weights in place when they are first evaluated, after which
bitsandbytes decodes garbage, loses gradients and merges wrongly. On GPUs bitsandbytes' own kernels run, and rung
computes what the card or the build refuses.
"""

from __future__ import annotations

import gc
import inspect
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from rung.core.errors import SoftwareMissing
from rung.core.types import StepClass
from rung.diagnosis import classify
from rung.exec.step_down import gpu
from rung.hub.bitsandbytes.kernels import KERNELS
from rung.hub.register import after_import, forget
from rung.run.torch_private import DispatchKey, keys_below
from rung.simulation.dispatch.patches import Patches
from rung.simulation.torch_api.placement import transparent

_log = logging.getLogger("rung")
_PEER = "bitsandbytes"
_KEY = "BackendSelect"

_libraries: list[torch.library.Library] = []
_patches = Patches()


def install() -> None:
    """Puts rung's kernels in place: now, or as soon as bitsandbytes has been imported. Twice does no harm.

    Raises ``SoftwareMissing`` where torch is too old to replace kernels.
    """
    if "allow_override" not in inspect.signature(torch.library.Library.impl).parameters:
        raise SoftwareMissing(
            f"torch {torch.__version__} cannot replace the kernels of a library",
            ["torch.library.Library.impl has no argument allow_override"],
            ["pip install -U torch"],
        )
    after_import(_PEER, replace_kernels)


def uninstall() -> None:
    """Puts everything back as it was before ``install()``."""
    forget(_PEER)
    while _libraries:
        _libraries.pop()._destroy()
    _patches.undo()


def replace_kernels() -> None:
    """Do what is left of ``install`` once bitsandbytes has been executed."""
    if _libraries:
        return
    library = torch.library.Library(_PEER, "IMPL")
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Warning only once for all operators")
        for name, kernel in KERNELS.items():
            if _operator(name) is not None:
                library.impl(name, transparent(kernel), "CPU", allow_override=True)
    if gpu():
        _guard()
    _stop_repacking()
    weights: Any = sys.modules[f"{_PEER}.nn.modules"].Params4bit
    _patches.set(weights, "_quantize", keeping_scales(weights._quantize))


def _operator(name: str) -> Any:
    """The operator of that name; None where this version of bitsandbytes has none."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.bitsandbytes, packet, None), overload or "default", None)


def _stop_repacking() -> None:
    """Layers keep their weights as they are stored; those that were repacked before get them back."""
    modules, functional = (sys.modules[f"{_PEER}.{name}"] for name in ("nn.modules", "functional"))
    unpack = getattr(functional, "_convert_weight_packed_for_cpu_inverse", None)
    if unpack is None:  # a version that does not repack
        return
    for each in gc.get_objects():
        if type(each) is modules.Params4bit and getattr(each.quant_state, "packing_format_for_cpu", False):
            each.data, state = unpack(each.data, each.quant_state)
            if not state.nested:  # which leaves their scales as they were packed
                state.absmax = state.absmax.T.reshape(-1).float()
    for holder in (modules, functional):
        _patches.set(holder, "has_avx512bf16", lambda: False)
    _patches.set(modules, "_convert_weight_packed_for_cpu", lambda weight, state: (weight, state))


def keeping_scales(quantize: Callable[..., Any]) -> Callable[..., Any]:
    """``Params4bit._quantize`` that keeps the scales of before where they hold the new values exactly.

    A merge decodes, adds and makes a parameter of the sum that still knows the state of the old one. Encoded again,
    decoded values need not give the scales that they came from: nested ones have another mean, and a 16-bit dtype
    rounds. So an adapter without a difference would change the model.
    """

    def run(weight: Any, device: Any) -> Any:
        before, values = weight.quant_state, weight.data
        quantized = quantize(weight, device)
        if before is None or _outline(before) != _outline(quantized.quant_state):
            return quantized
        decoded = sys.modules[f"{_PEER}.functional"].dequantize_4bit(quantized.data, before)
        if torch.equal(decoded.to(values.dtype), values.to(decoded.device)):
            quantized.quant_state = before
            if quantized.module is not None:
                quantized.module.quant_state = before
        return quantized

    return run


def _outline(state: Any) -> tuple[Any, ...]:
    """Return the properties that two states must share for one to hold the data of the other."""
    return state.shape, state.blocksize, state.quant_type, state.nested, state.absmax.shape, state.absmax.device


def _guard() -> None:
    """On GPUs what bitsandbytes' own kernel refuses is computed by rung; what works is left alone."""
    library = torch.library.Library(_PEER, "IMPL", _KEY)
    _libraries.append(library)
    for name, kernel in KERNELS.items():
        op = _operator(name)
        if op is not None:
            library.impl(name, guarded(op, kernel), with_keyset=True)


def guarded(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The operator's own kernel for the device, and ``kernel`` once that has refused."""
    below = keys_below(getattr(DispatchKey, _KEY))
    run, refused = op._handle.redispatch_boxed, set[tuple[torch.device, torch.dtype]]()

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        first = next(value for value in args if isinstance(value, torch.Tensor))
        key = (first.device, first.dtype)
        if key not in refused:
            try:
                return run(keys & below, *args, **kwargs)
            except Exception as error:
                found = classify(error)
                if found is None or found.signature.step is not StepClass.UNSUPPORTED:
                    raise
                refused.add(key)
                _log.warning(
                    "%s in %s is computed by rung on %s: %s", op._name, first.dtype, first.device, found.reason
                )
        return kernel(*args, **kwargs)

    return call
