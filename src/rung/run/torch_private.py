"""Private names of torch that rung uses: this file alone knows them, so that a new release of torch breaks one file.

Each stands here under the name that says what it is for. ``tests/run/test_torch_private.py`` refuses others elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device, _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _pop_mode_temporarily as pop_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

__all__ = [
    "TorchDispatchMode",
    "pop_dispatch_mode",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]

# Dispatch keys: which kernels a call reaches.
DispatchKey: Any = torch._C.DispatchKey
DispatchKeySet: Any = torch._C.DispatchKeySet
parse_dispatch_key: Callable[[str], Any] = torch._C._parse_dispatch_key
#: (tensor) -> its key set.
dispatch_keys: Callable[[torch.Tensor], Any] = torch._C._dispatch_keys
#: (key) -> the keys below it.
keys_below: Callable[[Any], Any] = torch._C._dispatch_keyset_full_after
#: (key, whether) for this thread.
include_key: Callable[[Any, bool], None] = torch._C._dispatch_tls_set_dispatch_key_included
exclude_key: Callable[[Any, bool], None] = torch._C._dispatch_tls_set_dispatch_key_excluded
is_key_included: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included
ExcludeKeys: Any = torch._C._ExcludeDispatchKeyGuard
BelowAutograd: Any = torch._C._AutoDispatchBelowAutograd
#: Number of dispatch modes that wait in this thread.
dispatch_modes_waiting: Callable[[], int] = torch._C._len_torch_dispatch_stack

# Registered operators.
#: (operator, key) -> whether it has a kernel there.
has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
operators_with_kernel: Callable[[str], list[str]] = torch._C._dispatch_get_registrations_for_dispatch_key
all_operators: Callable[[], list[str]] = torch._C._dispatch_get_all_op_names
get_schema: Callable[[str, str], Any] = torch._C._get_schema
#: ``aten::to.dtype`` without Python's dispatch.
to_dtype: Any = torch.ops.aten.to.dtype._op

# Function modes and default devices.
disabled_torch_function: Any = torch._C._disabled_torch_function_impl
function_modes_waiting: Callable[[], int] = torch._C._len_torch_function_stack
function_mode_at: Callable[[int], Any] = torch._C._get_function_stack_at
DeviceContext: Any = _device.DeviceContext
device_constructors: Callable[[], Any] = _device._device_constructors

# Transforms and tracing.
is_tracing: Callable[[], bool] = torch._C._is_tracing
are_transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
DisableTransforms: Any = torch._C._DisableFuncTorch

# Where tensors and storages lie, below what replaces these properties.
tensor_device: Callable[[Any], torch.device] = torch._C.TensorBase.device.__get__
tensor_is_cpu: Callable[[Any], bool] = torch._C.TensorBase.is_cpu.__get__  # type: ignore[attr-defined]
new_tensor: Any = torch._C.TensorBase.__new__
storage_device: Callable[[Any], torch.device] = torch._C.StorageBase.device.__get__  # type: ignore[attr-defined]
restore_location: Any = torch.serialization._get_restore_location
package_registry: list[Any] = torch.serialization._package_registry

# cuDNN in this thread.
is_cudnn_enabled: Callable[[], bool] = torch._C._get_cudnn_enabled
set_cudnn_enabled: Callable[[bool], None] = torch._C._set_cudnn_enabled

# Products of quantized matrices.
int_mm: Any = torch._int_mm
scaled_mm: Any = getattr(torch, "_scaled_mm", None)
#: The class that all convolutions share.
Convolution: Any = torch.nn.modules.conv._ConvNd

# Modules whose names a simulation replaces.
C: Any = torch._C
NN: Any = torch._C._nn
#: (module, name) of functions to replace.
RAW_STREAM = (torch._C, "_cuda_getCurrentRawStream")
EMPTY_PINNED_CACHE = (torch._C, "_host_emptyCache")
PARSE_TO = (torch._C._nn, "_parse_to")
FOREACH_DEVICES = "_get_foreach_kernels_supported_devices"
foreach_utils: Any = _foreach_utils


def default_device() -> torch.device | None:
    """Return the device set by ``torch.set_default_device``."""
    return _device.CURRENT_DEVICE


def has_xpu() -> bool:
    """Return whether this torch is built for Intel GPUs."""
    return bool(getattr(torch._C, "_has_xpu", False))


def has_triton() -> bool:
    """Return whether torch can compile with Triton here."""
    from torch.utils import _triton

    return bool(_triton.has_triton())


def import_compiler() -> Any:
    """Import ``torch._dynamo``, which takes long, before anything of torch is replaced."""
    import torch._dynamo as compiler

    return compiler
