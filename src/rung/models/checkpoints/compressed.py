"""compressed-tensors (https://github.com/vllm-project/compressed-tensors): packed and plain integers, 8-bit floats.

``weight_packed`` int32 [out, in bits / 32] holds each row as one stream of bits, codes from 0 with the middle as zero
point unless ``weight_zero_point`` (packed along the other side) says another; ``weight_shape`` says how many columns
are real; ``weight_g_idx`` the group of each column. Plain: ``weight`` int8 or e4m3. ``weight_scale`` has one value, or
[out, groups], or one for each block. weight = (code - zero) * scale in the dtype of the scale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rung.core.errors import BadFile
from rung.core.value import FrozenDict
from rung.models.checkpoints import fp8
from rung.models.checkpoints.values import (
    FLOATS,
    INDICES,
    Headers,
    Peek,
    Raw,
    StoredWeight,
    contradiction,
    format_of,
    group_size,
    need,
    shaped,
    whole,
    words_for,
)

if TYPE_CHECKING:
    from rung.formats import Encoded

SUFFIXES = {
    ".weight": "weight",
    ".weight_packed": "packed",
    ".weight_scale": "scale",
    ".weight_zero_point": "zero",
    ".weight_shape": "shape",
    ".weight_g_idx": "g_idx",
    ".input_scale": "activations",
    ".input_zero_point": "activations_zero",
}
KEY = "scale"


def stored_weight(config: Mapping[str, Any], name: str, parts: Headers, peek: Peek) -> StoredWeight | None:
    """See ``values.Method``."""
    scheme = _scheme(config, name.removesuffix(".weight"))
    if "packed" in parts:
        return _packed(name, parts, scheme, peek)
    need(name, parts, "weight")
    if parts["weight"].dtype == "I8":
        return _plain(name, parts, scheme)
    block = scheme.get("block_structure") if scheme.get("strategy") == "block" else None
    return fp8.of_codes(name, parts, block)


def _scheme(config: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """Return the scheme of the weights of a linear layer. Raises ``BadFile``."""
    groups = config.get("config_groups")
    found = [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
    exact = [group for group in found if any(_means(target, module) for target in group.get("targets") or ())]
    linear = [group for group in found if "Linear" in (group.get("targets") or ())]
    for group in (*exact, *linear):
        if isinstance(weights := group.get("weights"), Mapping):
            return weights
    raise BadFile(f"quantization_config has no config_groups for {module}, which is stored quantized")


def _means(target: object, module: str) -> bool:
    text = str(target)
    return bool(re.match(text[3:], module)) if text.startswith("re:") else text == module


def _packed(name: str, parts: Headers, scheme: Mapping[str, Any], peek: Peek) -> StoredWeight:
    need(name, parts, "scale", "shape")
    bits = whole(scheme, "num_bits", (4, 8))
    shape = tuple(int(n) for n in peek("shape").values.reshape(-1))
    if len(shape) != 2 or min(shape) < 1:
        raise contradiction(name, f"{parts['shape'].name} is {list(shape)}")
    rows, columns = shape
    shaped(name, parts["packed"], (rows, words_for(columns, bits)), ("I32",))
    group = _group(name, parts, scheme, shape)
    if "zero" in parts:
        shaped(name, parts["zero"], (words_for(rows, bits), columns // group), ("I32",))
    elif scheme.get("symmetric") is False:
        raise contradiction(name, "symmetric is false, and there is no weight_zero_point")
    ordered = _ordered(name, parts, columns)
    if scheme.get("actorder") == "group" and not ordered:
        raise contradiction(name, "actorder is group, and there is no weight_g_idx")
    scale = FLOATS[parts["scale"].dtype]
    fmt = format_of(bits, group, scale, "zero" not in parts, ordered, columns)
    return StoredWeight(shape, fmt, FrozenDict({"bits": bits, "group": group}))


def _plain(name: str, parts: Headers, scheme: Mapping[str, Any]) -> StoredWeight:
    rows, columns = shape = (*parts["weight"].shape, 1, 1)[:2]
    shaped(name, parts["weight"], shape, ("I8",))
    need(name, parts, "scale")
    group = _group(name, parts, scheme, shape)
    if "zero" in parts:
        shaped(name, parts["zero"], parts["scale"].shape, ("I8",))
    ordered = _ordered(name, parts, columns)
    rowwise = group == columns and "zero" not in parts and not ordered
    scale = FLOATS[parts["scale"].dtype]
    fmt = "int8" if rowwise else format_of(8, group, scale, "zero" not in parts, ordered, columns)
    return StoredWeight((rows, columns), fmt, FrozenDict({"bits": 8, "group": group}))


def _ordered(name: str, parts: Headers, columns: int) -> bool:
    """Return whether columns say which group is theirs."""
    if "g_idx" in parts:
        shaped(name, parts["g_idx"], (columns,), INDICES)
    return "g_idx" in parts


def _group(name: str, parts: Headers, scheme: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """Columns that share a scale, which must be what the shape of the scales says."""
    rows, columns = shape
    group = group_size(scheme, columns) if scheme.get("strategy") == "group" else columns
    if columns % group:
        raise contradiction(name, f"groups of {group} do not divide rows of {columns}")
    scale = parts["scale"]
    one = scale.shape in ((), (1,)) and group == columns
    shaped(name, scale, scale.shape if one else (rows, columns // group), tuple(FLOATS))
    return group


def read(stored: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
    """See ``values.Method``."""
    import numpy as np

    from rung import formats
    from rung.formats import Encoded
    from rung.models.checkpoints.packed import by_group, unpack, weight

    if "columns" in stored.settings:
        return fp8.read(stored, parts, name)
    (rows, columns), bits, group = stored.shape, stored.settings["bits"], stored.settings["group"]
    grid = (rows, columns // group)
    scale = Raw(parts["scale"].dtype, np.broadcast_to(parts["scale"].values.reshape(-1, grid[1]), grid))
    if stored.format == "int8":
        whole_rows = np.ascontiguousarray(scale.floats()[:, 0])
        return Encoded(formats.get("int8"), (rows, columns), {"data": parts["weight"].values, "scale": whole_rows})
    middle = 2 ** (bits - 1)
    if "packed" in parts:
        codes = unpack(parts["packed"].values, bits, columns)
        zero = unpack(parts["zero"].values.T, bits, rows).T if "zero" in parts else np.full(grid, middle)
    else:
        codes = parts["weight"].values.view(np.uint8) ^ np.uint8(128)
        zero = np.full(grid, 128) + (parts["zero"].values if "zero" in parts else 0)
    order = by_group(parts["g_idx"].values, group, name) if "g_idx" in parts else None
    if order is not None:
        codes = codes[:, np.argsort(order)]
    scale = Raw(scale.dtype, np.ascontiguousarray(scale.values))
    return weight(stored.format, codes, scale, zero, middle, name, order)
