"""Catch an operation that the device refuses, repeat it one rung lower, and remember it by operation and dtype."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rung.core.types import StepClass
from rung.diagnosis import classify, match_alone
from rung.exec.fallbacks import Way, full, in_pieces, spelled, ways
from rung.exec.report import Notes
from rung.run.torch_private import BelowAutograd, DispatchKey, TorchDispatchMode, has_xpu, keys_below

#: Signatures whose refusal may be one of the algorithm: libraries that have several for an operation.
_LIBRARIES = ("cublas-", "cudnn-", "hipblas-", "miopen-")
_Key = tuple[str, torch.dtype, str]


class _Local(threading.local):
    repeating = False


class Steps:
    """The operations that were refused in this process, each with the way that was found."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.found_ways: dict[_Key, tuple[str, Way, str]] = {}
        self._local = _Local()
        #: Names of the operations that have been refused in some dtype: all others are not looked up.
        self.names: set[str] = set()

    def remembered(self, op: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Computes an operation whose name is known: as was found before where it was refused, else by ``run``."""
        key = _key(op, args, kwargs)
        found = None if self._local.repeating or key is None else self.found_ways.get(key)
        if found is not None and key is not None:
            label, way, reason = found
            try:
                with self._below():
                    result = self._fitting(op, way, args, kwargs)
            except Exception as error:
                if match_alone(error) is None:
                    raise
            else:  # a way that one size takes another may refuse: then it is looked for again
                self._note(key, label, reason)
                return result
        try:
            return run(*args, **kwargs)
        except Exception as error:
            return self.repeat(op, args, kwargs, error)

    def repeat(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Any:
        """The result one rung lower; raises ``error`` where it is no question of compatibility or nothing is lower."""
        key = _key(op, args, kwargs)
        found = None if self._local.repeating or key is None else classify(error)
        if found is None or key is None:
            raise error
        with self._below():
            if found.signature.step is StepClass.OUT_OF_MEMORY:
                result = in_pieces(op, lambda inputs, named: op(*inputs, **named), args, kwargs)
                if result is None:
                    raise error
                self._note(key, "in pieces", found.reason)
                return result
            if found.signature.step is not StepClass.UNSUPPORTED:
                raise error
            for label, way in ways(op, key[1], algorithms=found.signature.id.startswith(_LIBRARIES)):
                try:
                    result = self._fitting(op, way, args, kwargs)
                except Exception as again:
                    if match_alone(again) is None:
                        raise error from again
                    if full(again):
                        self._notes.word(f"{_spoken(key)} on {key[2]}: {label} does not fit into the memory")
                    continue
                self.found_ways[key] = (label, way, found.reason)
                self.names.add(key[0])
                self._note(key, label, found.reason)
                return result
        raise error

    def repeat_above(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Any:
        """The same of an operation that torch makes of others: above autograd, which records those."""
        key = _key(op, args, kwargs)
        found = None if self._local.repeating or key is None else classify(error)
        if found is None or key is None or found.signature.step is not StepClass.UNSUPPORTED:
            raise error
        for label, way in ways(op, key[1], algorithms=False):
            try:
                result = way(args, kwargs)
            except Exception as again:
                if match_alone(again) is None:
                    raise error from again
                continue
            self._note(key, label, found.reason)
            return result
        raise error

    def _fitting(self, op: Any, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """By that way, in pieces where its copies do not fit."""
        try:
            return way(args, kwargs)
        except Exception as error:
            if not full(error):
                raise
            refused = error.with_traceback(None)  # which held the copies that were made until then
        result = in_pieces(op, way, args, kwargs)
        if result is None:
            raise refused
        return result

    @contextlib.contextmanager
    def _below(self) -> Iterator[None]:
        """Below autograd, which sees the operation alone; what is refused meanwhile is not repeated itself."""
        self._local.repeating = True
        try:
            with BelowAutograd():
                yield
        finally:
            self._local.repeating = False

    def _note(self, key: _Key, label: str, reason: str) -> None:
        if key[2] != "meta":  # shapes alone, as torch.compile asks for them: nothing was computed
            self._notes.step(_spoken(key), key[2], spelled(key[1]), label, reason)


def _spoken(key: _Key) -> str:
    return key[0].removeprefix("aten::")


def _key(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Key | None:
    """Name, dtype and device: those of the first tensor that is no index; None without tensors."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    for value in args:
        if value.__class__ in (list, tuple):
            tensors += [item for item in value if isinstance(item, Tensor)]
    subject = next((t for t in tensors if t.is_floating_point() or t.is_complex()), tensors[0] if tensors else None)
    return None if subject is None else (op._name, subject.dtype, str(subject.device))


_KEY = "BackendSelect"
#: What libraries compute: refused in some dtype, layout or size by some GPU or build. Processors do these in every
#: dtype, and there a few microseconds may be a tenth of a step of training, so without a GPU they are not watched.
LIBRARIES = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "dot", "vdot", "_int_mm", "_scaled_mm", "_addmm_activation",
    "mm.out", "addmm.out", "bmm.out", "baddbmm.out", "addmm_", "baddbmm_",
    "convolution", "convolution_backward", "_fft_r2c", "_fft_c2r", "_fft_c2c",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
)  # fmt: skip
#: What processors and GPUs have in f32 and seldom in 16 bits, found by running torch's own samples of every operation
#: in them (torch 2.13, processor). None of them is called often enough for microseconds to count.
FUNCTIONS = (
    "_cdist_forward", "_cdist_backward", "_ctc_loss", "_ctc_loss.Tensor", "_ctc_loss_backward",
    "_ctc_loss_backward.Tensor", "_histogramdd_bin_edges", "histogram.bin_ct", "_upsample_bilinear2d_aa",
    "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa_backward", "avg_pool3d",
    "avg_pool3d_backward", "multi_margin_loss", "multi_margin_loss_backward", "multilabel_margin_loss_forward",
    "multilabel_margin_loss_backward", "polar", "rrelu_with_noise", "rrelu_with_noise_backward",
    "_pdist_forward", "_pdist_backward", "_standard_gamma", "_sample_dirichlet", "binomial", "_linalg_eigvals",
    "_linalg_det", "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd", "cholesky", "cholesky_inverse",
    "cholesky_solve", "geqrf", "ormqr", "triangular_solve", "linalg_cholesky_ex", "linalg_eig",
    "linalg_householder_product", "linalg_inv_ex", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lstsq",
    "linalg_pinv.atol_rtol_tensor",
    "linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_matrix_exp", "linalg_qr", "linalg_solve_triangular",
    "special_erfcx", "special_log_ndtr", "special_ndtri", "special_zeta", "special_airy_ai", "special_bessel_j0",
    "special_bessel_j1", "special_bessel_y0", "special_bessel_y1", "special_modified_bessel_i0",
    "special_modified_bessel_i1", "special_modified_bessel_k0", "special_modified_bessel_k1",
    "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0",
)  # fmt: skip
#: What torch makes of other operations and refuses in 16 bits before it comes to them.
COMPOSED = (
    "quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar", "logdet", "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord", "linalg_matrix_rank", "linalg_matrix_rank.atol_rtol_float",
    "linalg_matrix_rank.atol_rtol_tensor", "linalg_matrix_rank.tol_tensor",
)  # fmt: skip
#: Where torch looks such an operation up: with autograd and without.
_ABOVE = tuple(f"{autograd}{backend}" for backend in ("CPU", "CUDA", "XPU", "MPS") for autograd in ("Autograd", ""))
#: Where a driver of a GPU shows: NVIDIA's, under Windows's Linux and on Jetson too, AMD's and Intel's.
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvgpu", "/dev/nvhost-gpu", "/dev/kfd", "/dev/dri")

_libraries: list[Any] = []


def gpu() -> bool:
    """Return whether torch may use a GPU, found out without waking it: a process that forks must not have."""
    if sys.platform == "darwin":
        return True
    built = torch.version.cuda or torch.version.hip or has_xpu()
    return bool(built) and any(os.path.exists(path) for path in _DRIVERS)


def operations(steps: Steps, names: Iterable[str]) -> None:
    """Watches these operations on every device, in every thread, for the life of the process."""
    library = torch.library.Library("aten", "IMPL", _KEY)
    _libraries.append(library)
    below = keys_below(getattr(DispatchKey, _KEY))
    for name in names:
        op = _named(name)
        if op is not None:
            library.impl(name, _watched(op, below, steps), with_keyset=True)


def composed(steps: Steps) -> None:
    """Watches ``COMPOSED`` on every device, in every thread, for the life of the process."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name in COMPOSED:
        op = _named(name)
        if op is not None:
            for key in _ABOVE:
                library.impl(name, _taken_apart(op, steps), key)


def _named(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _taken_apart(op: Any, steps: Steps) -> Callable[..., Any]:
    def taken_apart(*args: Any, **kwargs: Any) -> Any:
        try:
            return op.decompose(*args, **kwargs)
        except Exception as error:
            return steps.repeat_above(op, args, kwargs, error)

    return taken_apart


def _watched(op: Any, below: Any, steps: Steps) -> Callable[..., Any]:
    run, names, name = op._handle.redispatch_boxed, steps.names, op._name

    def watched(keys: Any, *args: Any, **kwargs: Any) -> Any:
        lower = keys & below
        if name in names:
            return steps.remembered(op, lambda *inputs, **named: run(lower, *inputs, **named), args, kwargs)
        try:
            return run(lower, *args, **kwargs)
        except Exception as error:
            return steps.repeat(op, args, kwargs, error)

    return watched


class Everything(TorchDispatchMode):
    """Watches every operation of a thread. For simulated cards: it costs microseconds an operation."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled on a simulated card

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs the operation, or what stands in for it."""
        if func._name in self._steps.names:
            return self._steps.remembered(func, func, args, kwargs or {})
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            return self._steps.repeat(func, args, kwargs or {}, error)
