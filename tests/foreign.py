"""Checkpoints as other quantizers write them, and what their packages decode; GPTQ and AWQ by the specification."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.tiny import tiny_checkpoint

Tensors = dict[str, Tensor]


class Variant(NamedTuple):
    """A quantization config, and from a weight to the tensors that are stored for it and what they decode to."""

    config: dict[str, Any]
    store: Callable[[Tensor], tuple[Tensors, Tensor]]
    #: The package that decodes; empty for a decoder that stands here.
    package: str = ""


def write(folder: Path, variant: Variant, model_type: str = "llama", **overrides: Any) -> Tensors:
    """A tiny checkpoint whose linear layers are stored so. Returns their decoded weights by name."""
    tiny_checkpoint(folder, model_type, "bfloat16", **overrides)
    return store(folder, variant, lambda name: name.endswith("proj.weight"))


def store(folder: Path, variant: Variant, chosen: Callable[[str], bool], turned: bool = False) -> Tensors:
    """Stores the weights of a folder whose names are ``chosen`` so, [in, out] ones ``turned``. Returns them decoded."""
    stored, decoded = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not chosen(name):
            stored[name] = weight
            continue
        tensors, values = variant.store((weight.T if turned else weight).float().contiguous())
        decoded[name] = values.T if turned else values
        stored |= {name.removesuffix(".weight") + suffix: part.contiguous() for suffix, part in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    configure(folder, variant.config)
    return decoded


def configure(folder: Path, quantization: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))


# --- codes in words of 32 bits, by Python's own integers


def pack_words(codes: Tensor, bits: int) -> Tensor:
    """[n, count] -> int32 [n, words]: code i of a row at the bits i * bits ... of one long number."""
    words = -(-codes.shape[1] * bits // 32)
    rows = []
    for row in codes.tolist():
        number = sum(code << (bits * index) for index, code in enumerate(row))
        rows.append([int.from_bytes(w, "little", signed=True) for w in _fours(number.to_bytes(4 * words, "little"))])
    return torch.tensor(rows, dtype=torch.int32)


def unpack_words(words: Tensor, bits: int, count: int) -> Tensor:
    """The reverse."""
    rows = []
    for row in words.tolist():
        number = int.from_bytes(b"".join(w.to_bytes(4, "little", signed=True) for w in row), "little")
        rows.append([(number >> (bits * index)) & (2**bits - 1) for index in range(count)])
    return torch.tensor(rows)


def _fours(data: bytes) -> list[bytes]:
    return [data[at : at + 4] for at in range(0, len(data), 4)]


def quantized(
    weight: Tensor, bits: int, group: int, symmetric: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [out, in], scales and zero points [out, groups]."""
    top = 2**bits - 1
    groups = weight.unflatten(1, (-1, group))
    if symmetric:
        scale = (groups.abs().amax(-1) / (top / 2)).to(dtype)
        zero = torch.full_like(scale, 2 ** (bits - 1), dtype=torch.int64)
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = ((high - low) / top).to(dtype)
        zero = (-low / scale.float()).round().clamp(0, top).long()
    codes = (groups / scale.float()[..., None] + zero[..., None]).round().clamp(0, top).long()
    return codes.flatten(1), scale, zero


# --- GPTQ: AutoGPTQ's and GPTQModel's layout


def gptq(bits: int = 4, group: int = 32, symmetric: bool = True, ordered: bool = False, version: int = 1) -> Variant:
    def store(weight: Tensor) -> tuple[Tensors, Tensor]:
        columns = weight.shape[1]
        size = columns if group == -1 else group
        part = (
            torch.randperm(columns, generator=torch.Generator().manual_seed(columns))
            if ordered
            else torch.arange(columns)
        )
        codes, scale, zero = quantized(weight[:, part], bits, size, symmetric, torch.float16)
        g_idx = torch.empty(columns, dtype=torch.int32)
        g_idx[part] = (torch.arange(columns) // size).int()
        natural = torch.empty_like(codes)
        natural[:, part] = codes
        stored_zero = (zero - int(version == 1)) % 2**bits
        tensors = {
            ".qweight": pack_words(natural, bits).T,
            ".qzeros": pack_words(stored_zero.T, bits),
            ".scales": scale.T,
            ".g_idx": g_idx,
        }
        return tensors, decode_gptq(tensors, bits, version)

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": ordered}
    return Variant(config | {"checkpoint_format": "gptq" if version == 1 else "gptq_v2"}, store)


def decode_gptq(tensors: Tensors, bits: int, version: int) -> Tensor:
    """weight[out, in] = (code - zero point of its group) * scale of its group, in float16."""
    scales, groups = tensors[".scales"].T, tensors[".g_idx"].long()
    codes = unpack_words(tensors[".qweight"].T, bits, len(groups))
    zeros = unpack_words(tensors[".qzeros"], bits, len(scales)).T
    zeros = (zeros + int(version == 1)) % 2**bits
    return (codes - zeros[:, groups]).half() * scales[:, groups]


# --- AWQ: AutoAWQ's gemm layout

_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def awq(group: int = 32) -> Variant:
    def store(weight: Tensor) -> tuple[Tensors, Tensor]:
        codes, scale, zero = quantized(weight, 4, group, False, torch.float16)
        tensors = {".qweight": _awq_words(codes.T), ".qzeros": _awq_words(zero.T), ".scales": scale.T}
        return tensors, decode_awq(tensors, group)

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Variant(config, store)


def _awq_words(codes: Tensor) -> Tensor:
    """[n, outputs]: nibble i of a word is the output _AWQ_ORDER[i] of its eight."""
    return pack_words(codes.unflatten(1, (-1, 8))[..., _AWQ_ORDER].flatten(1), 4)


def decode_awq(tensors: Tensors, group: int) -> Tensor:
    """weight[out, in] = (code - zero) * scale, in float16."""
    outputs = tensors[".scales"].shape[1]
    both = []
    for part in (".qweight", ".qzeros"):
        nibbles = unpack_words(tensors[part], 4, outputs).unflatten(1, (-1, 8))
        codes = torch.empty_like(nibbles)
        for index, output in enumerate(_AWQ_ORDER):
            codes[..., output] = nibbles[..., index]
        both.append(codes.flatten(1))
    codes, zeros = both
    spread = torch.arange(len(codes)) // group
    return ((codes - zeros[spread]).half() * tensors[".scales"][spread]).T


# --- compressed-tensors, by its package


def compressed(packed: bool, bits: int, strategy: str, dtype: torch.dtype = torch.bfloat16, **more: Any) -> Variant:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": False} | more
    ordered = more.get("actorder") == "group"

    def store(weight: Tensor) -> tuple[Tensors, Tensor]:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.lifecycle.forward import dequantize

        args = QuantizationArgs(**{key: value for key, value in weights.items() if key != "actorder"})
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        scale, zero, extra = _parameters(weight, args, dtype)
        state = {"weight": weight.to(dtype), "weight_scale": scale} | (
            {} if zero is None else {"weight_zero_point": zero}
        )
        name = "pack-quantized" if packed else "float-quantized" if args.type == "float" else "int-quantized"
        compressor = BaseCompressor.get_value_from_registry(name)
        if ordered:
            groups = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(1)) // args.group_size
            extra["weight_g_idx"] = groups.int()
            return _with_order(state, groups, args, scheme, compressor, dequantize)
        stored = compressor.compress(state, scheme)
        decoded = compressor.decompress(stored, scheme)["weight"]
        return {f".{name}": part for name, part in stored.items()}, decoded

    layout = "pack-quantized" if packed else "float-quantized" if weights["type"] == "float" else "int-quantized"
    config = {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return Variant(config | {"config_groups": {"group_0": group}}, store, "compressed_tensors")


def _parameters(weight: Tensor, args: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Tensors]:
    """Scales and zero points of a strategy."""
    rows, columns = weight.shape
    strategy = str(args.strategy)
    top = 448.0 if args.type == "float" else 2 ** (args.num_bits - 1) - 1
    if strategy == "block":
        tall, wide = args.block_structure
        peaks = weight.reshape(rows // tall, tall, columns // wide, wide).abs().amax((1, 3))
    else:
        group = args.group_size if strategy == "group" else columns
        grouped = weight.unflatten(1, (-1, group))
        peaks = grouped.abs().amax(-1)
        if strategy == "tensor":
            peaks = peaks.amax().reshape(1)
        if not args.symmetric:
            low, high = grouped.amin(-1), grouped.amax(-1)
            scale = ((high - low) / (2 * top + 1)).to(dtype)
            zero = (-(low / scale.float()) - top - 1).round().clamp(-top - 1, top).to(torch.int8)
            return scale, zero, {}
    return (peaks / top).to(dtype), None, {}


def _with_order(
    state: Tensors, groups: Tensor, args: Any, scheme: Any, compressor: Any, dequantize: Any
) -> tuple[Tensors, Tensor]:
    """Columns in groups of their own choice: the package's own arithmetic on columns that are sorted by group."""
    order = torch.argsort(groups, stable=True)
    sorted_state = state | {"weight": state["weight"][:, order]}
    stored = compressor.compress(sorted_state, scheme)
    decoded = compressor.decompress(stored, scheme)["weight"]
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

    codes = unpack_from_int32(stored["weight_packed"], args.num_bits, state["weight"].shape)
    natural, values = torch.empty_like(codes), torch.empty_like(decoded)
    natural[:, order], values[:, order] = codes, decoded
    stored |= {"weight_packed": pack_to_int32(natural, args.num_bits), "weight_g_idx": groups.int()}
    return {f".{name}": part for name, part in stored.items()}, values


# --- fp8, by transformers


def fp8(block: tuple[int, int] | None = (32, 32), scale: torch.dtype = torch.float32) -> Variant:
    def store(weight: Tensor) -> tuple[Tensors, Tensor]:
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize

        rows, columns = weight.shape
        tall, wide = block or (rows, columns)
        apart = weight.reshape(rows // tall, tall, columns // wide, wide)
        peaks = apart.abs().amax((1, 3)) / 448
        if scale == torch.uint8:
            exponents = torch.ceil(torch.log2(peaks)).clamp(-127, 127)
            stored, peaks = (exponents + 127).to(torch.uint8), exponents.exp2()
        else:
            stored = peaks.to(scale)
            peaks = stored.float()
        codes = (apart / peaks[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
        if block is None:
            stored = stored.reshape(())
        decoded = Fp8Dequantize(None)._dequantize_one(codes, stored.reshape(rows // tall, columns // wide))
        return {".weight": codes, ".weight_scale_inv": stored}, decoded

    sizes = None if block is None else list(block)
    return Variant(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": sizes}, store, "transformers"
    )


# --- HQQ, by its package


def hqq(bits: int = 4, axis: int = 1, group: int = 32, dtype: torch.dtype = torch.float16) -> Variant:
    def store(weight: Tensor) -> tuple[Tensors, Tensor]:
        from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

        plain = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        plain.weight.data = weight.clone()
        config = BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis)
        layer = HQQLinear(plain, config, compute_dtype=dtype, device="cpu")
        return {f".{name}": part.data for name, part in layer.state_dict().items()}, layer.dequantize()

    options = {"nbits": bits, "group_size": group, "axis": axis}
    return Variant({"quant_method": "hqq", "quant_config": {"weight_quant_params": options}}, store, "hqq")


# --- bitsandbytes, by its package


def bitsandbytes(
    kind: str = "nf4", block: int = 64, nested: bool = False, storage: torch.dtype = torch.uint8
) -> Variant:
    def store(weight: Tensor) -> tuple[Tensors, Tensor]:
        from bitsandbytes import functional

        if kind == "int8":
            codes, largest, _ = functional.int8_vectorwise_quant(weight.half())
            decoded = functional.int8_vectorwise_dequant(codes, largest)
            return {".weight": codes, ".SCB": largest, ".weight_format": torch.tensor(0, dtype=torch.uint8)}, decoded
        codes, state = functional.quantize_4bit(
            weight, blocksize=block, quant_type=kind, compress_statistics=nested, quant_storage=storage
        )
        parts = {f".weight.{name}": part for name, part in state.as_dict(packed=True).items()}
        return {".weight": codes, **parts}, functional.dequantize_4bit(codes, state)

    config = {"quant_method": "bitsandbytes", "load_in_4bit": kind != "int8", "load_in_8bit": kind == "int8"}
    return Variant(config | {"bnb_4bit_quant_type": kind}, store, "bitsandbytes")


_BF16, _F16 = torch.bfloat16, torch.float16
VARIANTS: dict[str, Variant] = {
    "gptq": gptq(),
    "gptq-v2": gptq(version=2),
    "gptq-asymmetric": gptq(symmetric=False),
    "gptq-asymmetric-v2": gptq(symmetric=False, version=2),
    "gptq-row": gptq(group=-1),
    "gptq-ordered": gptq(ordered=True),
    "gptq-ordered-3-asymmetric": gptq(3, symmetric=False, ordered=True),
    "gptq-2": gptq(2, 64, False),
    "gptq-3": gptq(3),
    "gptq-8": gptq(8),
    "gptq-8-asymmetric-16": gptq(8, 16, False),
    "awq": awq(),
    "ct-int4": compressed(True, 4, "group", group_size=32),
    "ct-int4-f16": compressed(True, 4, "group", _F16, group_size=32),
    "ct-int4-channel": compressed(True, 4, "channel"),
    "ct-int4-asymmetric": compressed(True, 4, "group", group_size=32, symmetric=False),
    "ct-int4-ordered": compressed(True, 4, "group", group_size=32, actorder="group"),
    "ct-int8-packed": compressed(True, 8, "group", group_size=64),
    "ct-int8": compressed(False, 8, "channel"),
    "ct-int8-asymmetric": compressed(False, 8, "channel", symmetric=False),
    "ct-int8-tensor": compressed(False, 8, "tensor"),
    "ct-fp8": compressed(False, 8, "channel", type="float"),
    "ct-fp8-tensor": compressed(False, 8, "tensor", type="float"),
    "ct-fp8-block": compressed(False, 8, "block", type="float", block_structure=[32, 32]),
    "fp8": fp8(),
    "fp8-tensor": fp8(None),
    "fp8-bf16": fp8(scale=_BF16),
    "fp8-ue8m0": fp8((32, 64), torch.uint8),
    "hqq": hqq(),
    "hqq-bf16": hqq(dtype=_BF16, group=64),
    "hqq-f32": hqq(dtype=torch.float32),
    "hqq-8": hqq(8),
    "hqq-axis-0": hqq(axis=0),
    "nf4": bitsandbytes(),
    "nf4-nested": bitsandbytes(nested=True),
    "fp4": bitsandbytes("fp4", storage=_BF16),
    "llm-int8": bitsandbytes("int8"),
}
