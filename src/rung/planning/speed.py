"""Predicted tokens per second, from bytes, operations and the device's rates.

A token takes the time of its weights, of the keys and values that it reads, and of what lies between. What
``rung calibrate`` measured of each stands in ``Device.rates``:

- ``numba.row q4_k``, by the rung that takes one row and the format: bytes of weights a second; ``numba.row q4_k
  many``: operations a second with many rows.
- ``cache 64 1``, by the size of a head (64 or 128) and the query heads that share a key head (1, 2, 4 or 8): bytes of
  keys and values a second; ``attention many``: operations a second of many queries.
- ``layer numba.step``, by the rung that computes whole tokens: seconds of a layer beside its linears. ``values many``:
  of a prompt, values a second that are normed, activated, added and quantized between the linears, counted as the
  columns of its state and of its feed-forward part for each layer and token.
- ``layer transformers``: seconds of a layer of a network that transformers builds, beside its weights and its cache;
  ``expert transformers``: of each expert that a token visits there; ``values transformers``: as ``values many``.
- ``launch torch.decode q4_k``: on a GPU, seconds in which a product is launched, by its rung and the format of its
  weight; ``layer gpu``: of everything else that a layer of a token launches. A GPU computes what was launched while the
  next is: a token takes as long as all launches or as all that is computed, whichever is longer, and so does a chunk of
  a prompt, which is launched like a token.
- ``spread``: how far apart two measurements of the same thing lay, as a share.

Where it has nothing the bandwidth and the peaks of the device are taken, and the shares of them that kernels reach;
of a processor of the catalog the instructions that its cores end and its kernels take (``instructions``). A token then
takes as long as its bytes or as its instructions, whichever is longer. The same of kernels for GPUs that multiply
weights as they are packed (``webgpu.``, ``cuda.``). A token of WebGPU is one command buffer: between two of its five
dispatches a layer the GPU drains. ``benchmarks/published_decode.py`` holds that against what others measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rung import formats
from rung.core.types import Device, Level
from rung.kernels import instructions
from rung.kernels.cuda.block_readers import BLOCKS
from rung.kernels.webgpu import instructions as shaders
from rung.kernels.webgpu.info import MOST_ROWS, SHARED_ROWS
from rung.models.decoder_memory import CHUNK, row_bytes
from rung.ops.decode_step import GRAPH, ROWS
from rung.ops.linear import DECODING
from rung.planning.network_spec import Subject, is_table
from rung.planning.weight_plan import Weight

#: Tokens of the prompt that a speed is predicted for and after, where nobody says.
PROMPT = 512
#: Bytes per second and operations per second taken when nothing is measured and the catalog is silent.
_SLOWEST_BANDWIDTH = 15e9
_SLOWEST_PEAK = 5e10
#: Weights per second that are decoded for the rungs that decode before they multiply: by numpy, which took 0.3 to 0.7
#: billion of q4_0 to q6_k on an EPYC server, and by the compiled kernels of the families that have them.
_DECODED_PER_SECOND, _COMPILED_PER_SECOND = 4e8, 4e9
_COMPILED = ("codebook4", "grouped")
#: Share of the measured bandwidth and peak that the kernels reach (benchmarks/linear_kernels.py).
_BANDWIDTH_SHARE = 0.75
_PEAK_SHARE = 0.5
#: Weights a second that a core packs whenever they are multiplied (0.4 for q2_k, 3.5 to 10 billion for the others).
_PACKED_PER_SECOND = 3e9
#: The share of the bandwidth that a maker names that a CPU reads: llama.cpp reached 0.46 to 0.75 on eight of them
#: (docs/cpus.md), and no measurement of rung on them is known.
_CPU_SHARE = 0.68
#: Instructions of kernels in CUDA C that decode a weight and multiply it with a row: about 4 at most
#: (``benchmarks/cuda.py``). A peak counts two operations an instruction.
_CUDA_INSTRUCTIONS = 4.0
#: The same of blocks as files store them, for the worst common one, q3_k on a card of 6.1 (``--blocks``).
_BLOCK_INSTRUCTIONS = 8.3
#: Instructions a weight of shaders for each row of activations beyond the first, in float32 and in int8
#: (``benchmarks/webgpu_instructions.py --rows 16``).
_MORE_ROWS = 4.2, 0.5
#: Instructions a weight by which a workgroup makes int8 of its row of activations: 520 of each of 256 threads for 32
#: rows of 4,096 columns (``--int8 --summed``); half of it where it has gate and up.
_INT8_UNITS = 1.0
#: Seconds beside the linears per layer and token: whole tokens as one program on a CPU, an op at a time, and on a GPU,
#: where Python launches about 50 kernels a layer, each in some 6 microseconds.
_LAYER_SECONDS = {
    "numba.step": 6e-5,
    "numba.glue": 5e-4,
    "gpu": 3e-4,
    "cuda.step": 2e-5,
    "transformers": 7e-4,
    "webgpu": 2e-5,
}
#: The same of each expert that a token visits in a network that transformers builds.
_EXPERT_SECONDS = 1.3e-4
#: The same of a chunk of a prompt, where nothing is measured.
_LAYER_CHUNK_SECONDS = 4e-3
#: Values a second between the linears of a network that transformers builds, on a CPU.
_VALUES_BORROWED = 2e8
#: Time of keys and values in blocks as a share of those in float16: in q8_0 0.53 to 0.74 by the query heads of a key
#: head, in q4_0 0.7 of that. By what 4,032 more positions add to a token of SmolLM2 135M, with three query heads to a
#: key head, shares are 0.73, 0.60 (q5_1) and 0.47 (``benchmarks/kv_cache.py --only speed``, ``--depth`` 64 and 4096).
_SHARES = {"q8_0": 0.7, "q5_1": 0.6, "q4_0": 0.5}
_FLOATS = ("f32", "f16", "bf16")
#: Formats whose activations ``webgpu.int8`` does not round.
_IN_FLOAT32 = (*_FLOATS, "nf4", "fp4")
#: Roles, without their layer, of weights that are multiplied with normed hidden states.
_BEHIND_NORMS = ("q", "k", "v", "qkv", "gate", "up", "gate_up", "head", "embed")
#: Tokens a second at which a person reads; below it an answer is waited for, and speed decides between formats.
READING_SPEED = 5.0


def at_reading_speed(tokens_per_second: float | None) -> bool:
    """Return whether text comes as fast as a person reads, judged by the number as ``rate`` prints it.

    >>> [at_reading_speed(each) for each in (4.96, 4.94, None)]
    [True, False, False]
    """
    return tokens_per_second is not None and round(round(tokens_per_second, 2), 1) >= READING_SPEED


@dataclass(frozen=True)
class Rates:
    """Tokens per second when answering (decode) and when reading a prompt (prefill)."""

    decode: float
    prefill: float


@dataclass(frozen=True)
class Group:
    """The matrices that share a format, a rung and a use: weights and bytes that one token reads.

    ``once``: the head and a tied embedding, which a prompt needs once and not at every token. ``matrices``: how many.
    ``summed``: weights of ``count`` whose activations a norm behind a product is added to, of which each workgroup of
    ``webgpu.int8`` makes int8 by itself.
    """

    format: str
    rung: str
    once: bool
    count: float
    bytes: float
    matrices: float = 1
    summed: float = 0.0


def groups(weights: Iterable[tuple[Weight, int]], subject: Subject) -> tuple[Group, ...]:
    """Group the weights that a token is multiplied with. Experts count by the share that a token visits, look-up tables
    not at all. Each weight stands for ``number`` weights like it."""
    found: dict[tuple[str, str, bool], list[float]] = {}
    for weight, number in weights:
        share = number * token_share(weight, subject)
        if not share:
            continue
        head = _is_head(weight, subject)
        sums = found.setdefault((weight.format.name, weight.rung, head), [0.0, 0.0, 0.0, 0.0])
        sums[0] += share * weight.count
        sums[1] += share * weight.read
        sums[2] += number
        sums[3] += share * weight.count if _follows_a_norm(weight.tensor.role, subject) else 0.0
    return tuple(Group(*key, *sums) for key, sums in found.items())


def token_share(weight: Weight, subject: Subject) -> float:
    """Return the share of a weight that is multiplied for a token: of experts those that it visits, of tables none."""
    role = weight.tensor.role
    if not weight.multiplies or (is_table(role) and not _is_head(weight, subject)):
        return 0.0
    return subject.experts_share if "experts" in role else 1.0


def _follows_a_norm(role: str, subject: Subject) -> bool:
    """Return whether the activations of a weight have the result of a norm behind a product added to them: in Gemma 2
    and 3 all but those of o and down. The first layer's q, k and v, which do not, count as those of all layers."""
    return subject.decoder is not None and subject.decoder.post_norms and role.rpartition(".")[2] in _BEHIND_NORMS


def _is_head(weight: Weight, subject: Subject) -> bool:
    return weight.tensor.role == "head" or (weight.tensor.role == "embed" and subject.tied)


def has_kernel(group: Group, device: Device) -> bool:
    """Return whether the time of a product on a device is known: not where a CPU decodes the weight in NumPy first.

    How long that takes is the same guess for every processor, so that no speed follows from it.
    """
    return device.kind != "cpu" or not decodes(group) or f"{group.rung} {group.format}" in device.rates


def decodes(group: Group) -> bool:
    """Return whether quantized weights are decoded before each product, not multiplied as they are stored."""
    return group.rung in DECODING and group.format not in _FLOATS


def bound(
    parts: Iterable[tuple[float, Device, float]], subject: Subject, cache_dtype: str, depth: int, batch: int
) -> float | None:
    """Return the tokens a second that memory allows: bandwidth over the bytes of a token, its weights and its cache.

    ``parts`` are the bytes of all weights of a token, a device and its share of the layers. None where a bandwidth is
    not known.
    """
    cache = batch * subject.cache_bytes(1, cache_dtype, 1) * _attended_keys(subject, depth)
    seconds = 0.0
    for weights, device, share in parts:
        if not device.bandwidth:
            return None
        seconds += share * (weights + cache) / device.bandwidth
    return batch / seconds if seconds else None


def rates(
    parts: Sequence[Group],
    subject: Subject,
    device: Device,
    context: int,
    cache_dtype: str,
    prompt: int,
    batch: int = 1,
    share: float = 1.0,
) -> Rates:
    """Tokens per second of a model that lies on one device, in all ``batch`` sequences together.

    ``prompt`` is the number of tokens read, after which decoding is timed. With a ``share`` of the layers ``parts`` are
    the matrices of these.
    """
    bandwidth = (device.bandwidth or _SLOWEST_BANDWIDTH) * _share(device)
    depth = max(min(prompt, context), 1)
    cache = share * batch * _cache_seconds(subject, device, depth, cache_dtype, bandwidth)
    layers = _layers(parts, subject, device, share)
    computed = cache + sum(_one_row(group, device, bandwidth) for group in parts)
    many = sum(2 * group.count / _peak(group, device) for group in parts if not group.once)
    once = sum(_one_row(group, device, bandwidth) for group in parts if group.once)
    packed = any(map(_multiplies_packed, parts))
    between = layers / MOST_ROWS if packed else share * _between(subject, device, depth)
    read = many + once / depth + share * _attention(subject, device, depth) + between
    if device.kind == "cpu" or not device.rates:
        return Rates(batch / (layers + computed), 1 / read)
    return Rates(batch / max(layers, computed), 1 / max(read, layers * _chunks(depth) / depth))


def seconds_of_products(parts: Iterable[Group], device: Device) -> float:
    """Return how long the products of a token take there, without its cache and what lies between them."""
    bandwidth = (device.bandwidth or _SLOWEST_BANDWIDTH) * _share(device)
    return sum(_one_row(group, device, bandwidth) for group in parts)


def _share(device: Device) -> float:
    """The share of the bandwidth of a device that kernels read; that of a CPU of the catalog is its maker's figure."""
    if device.real or device.kind != "cpu" or not instructions.rate(device):
        return _BANDWIDTH_SHARE
    return float(device.details.get("reads", _CPU_SHARE))


def _layers(parts: Iterable[Group], subject: Subject, device: Device, share: float = 1.0) -> float:
    """Return the seconds that a token takes in all layers, or in a ``share`` of them, without reading weights and
    cache, but with launching its linears."""
    parts = tuple(parts)
    step = "gpu" if device.kind != "cpu" else step_of(parts)
    if any(map(_multiplies_packed, parts)):
        step = "webgpu"
    if _is_graph(parts):
        step = "cuda.step"
    step = "transformers" if subject.borrowed else step
    measured = device.rates.get(f"layer {'gpu' if step == 'cuda.step' else step}")
    layer = measured or ((step == "numba.step" and instructions.seconds_of_layer(device)) or _LAYER_SECONDS[step])
    if subject.borrowed:
        layer += subject.shape.experts_per_token * device.rates.get("expert transformers", _EXPERT_SECONDS)
        return share * layer * subject.layers
    known = device.rates
    launches = sum(group.matrices * known.get(f"launch {group.rung} {group.format}", 0.0) for group in parts)
    return share * layer * subject.layers + launches


def _chunks(depth: int) -> int:
    """Return the rows of a chunk in which a prompt of so many tokens is read."""
    return -(-depth // CHUNK)


def _multiplies_packed(group: Group) -> bool:
    """Return whether a kernel of a GPU multiplies the weights as they are packed, in a whole token."""
    return group.rung.startswith("webgpu.")


def _has_dots(device: Device) -> bool:
    """Return whether a device of WebGPU multiplies four int8 at once: ``webgpu.int8`` then computes tokens."""
    return device.capability("dot8").level is Level.NATIVE


def _is_graph(parts: Sequence[Group]) -> bool:
    """Return whether a token is a graph of five kernels a layer (``cuda.step``)."""
    return bool(parts) and all(group.rung in GRAPH for group in parts)


def step_of(parts: Iterable[Group]) -> str:
    """The rung of ``decode_step`` that computes whole tokens with such linears on a CPU."""
    return "numba.step" if all(group.rung in ROWS for group in parts) else "numba.glue"


def _attended_keys(subject: Subject, depth: int) -> int:
    """Positions that a token after ``depth`` others attends to, summed over the layers."""
    if subject.decoder is None:
        return depth * subject.layers
    return sum(min(depth, layer.window or depth) for layer in subject.decoder.layers)


def _cache_seconds(subject: Subject, device: Device, depth: int, dtype: str, bandwidth: float) -> float:
    """Seconds in which a token reads keys and values; of a cache in blocks, on a CPU, a share of those of float16.

    A row is converted once for four of the query heads that share it, and once for each head that is left over
    (``kernels.cpu.decode.attention``): a pass of either kind has its time, beside that of fetching the row. How much of
    both a processor does at once is measured for common numbers of heads, and follows from these for others; on a GPU,
    which takes so much for the row and so much for each head, it is the straight line through them.
    """
    if dtype in _SHARES and device.kind == "cpu":
        return _SHARES[dtype] * _cache_seconds(subject, device, depth, "f16", bandwidth)
    cached = subject.cache_bytes(1, dtype, 1) * _attended_keys(subject, depth)
    size = 64 if subject.shape.head_dim <= 64 else 128
    known = [device.rates.get(f"cache {size} {group}") for group in (1, 4, 8)]
    if not subject.shape.kv_heads or not all(known):
        value_bytes = row_bytes(32, dtype) / 32
        computed = instructions.seconds_of_cache(device, subject.shape.heads // max(subject.shape.kv_heads, 1))
        return cached * max(1 / bandwidth, (computed or 0.0) / value_bytes)
    group = subject.shape.heads // subject.shape.kv_heads
    if measured := device.rates.get(f"cache {size} {group}"):
        return cached / measured
    one, four, eight = (1 / rate for rate in known if rate)
    fours = max(eight - four, 0.0)
    fetched = max(four - fours, 0.0)
    quads, singles = divmod(group, 4)
    return cached * (fetched + quads * fours + singles * max(one - fetched, 0.0))


def values_between(layers: int, hidden: int, wide: int) -> int:
    """Values that a token of a prompt is between linears."""
    return layers * (hidden + wide)


def _between(subject: Subject, device: Device, depth: int) -> float:
    """Seconds of what lies between the linears, for each token of a prompt."""
    shape = subject.shape
    wide = shape.feed_forward or shape.experts_per_token * shape.expert_feed_forward
    rate = device.rates.get("values many")
    if subject.borrowed:
        rate = device.rates.get("values transformers", _VALUES_BORROWED if device.kind == "cpu" else None)
    if not rate and not subject.borrowed and (known := instructions.seconds_of_value(device)):
        rate = 1 / known
    if rate:
        return values_between(subject.layers, shape.hidden, wide) / rate
    return _chunks(depth) * subject.layers * _LAYER_CHUNK_SECONDS / depth


def _attention(subject: Subject, device: Device, depth: int) -> float:
    """Seconds of attention for each token of a prompt, which sees half of the others, or its window."""
    rate = device.rates.get("attention many") or _peak_of("f32", device) * _PEAK_SHARE
    keys = min(_attended_keys(subject, depth), depth * subject.layers // 2)
    return 4 * keys * subject.shape.heads * subject.shape.head_dim / rate


def _one_row(group: Group, device: Device, bandwidth: float) -> float:
    if group.rung == "numba.mapped":
        threads = int(device.details.get("compute_threads") or device.details.get("cores", 1))
        return group.bytes / bandwidth + group.count / (_PACKED_PER_SECOND * threads)
    measured = _measured(group, device)
    seconds = group.bytes / (measured or bandwidth)
    if measured is None and group.rung.startswith("numba."):
        return max(seconds, group.count * (instructions.seconds_of_weight(device, group.format) or 0.0))
    if measured is None and group.rung.startswith(("webgpu.", "cuda.")):
        blocks = group.rung == "cuda.stored" and group.format in BLOCKS
        in_cuda = _BLOCK_INSTRUCTIONS if blocks else _CUDA_INSTRUCTIONS
        counted = 2 * (_instructions(group, device, 1) if _multiplies_packed(group) else in_cuda)
        return max(seconds, group.count * counted / _peak_of("f32", device))
    if decodes(group):
        if f"{group.rung} {group.format}" in device.rates:
            return seconds
        if device.kind == "cpu":
            compiled = formats.get(group.format).family in _COMPILED
            return seconds + group.count / (_COMPILED_PER_SECOND if compiled else _DECODED_PER_SECOND)
        return seconds + 8 * group.count / bandwidth  # written once and read once more as 16- or 32-bit floats
    return seconds


def _instructions(group: Group, device: Device, rows: int) -> float:
    """Instructions of a shader for a weight and so many rows of activations."""
    floats, integers = (shaders.of(group.format, int8) + (rows - 1) * _MORE_ROWS[int8] for int8 in (False, True))
    if not _has_dots(device) or group.format.split(":")[0] in _IN_FLOAT32:
        return floats
    share = group.summed / group.count if group.count else 0.0
    return integers + (share * _INT8_UNITS if rows == 1 else 0.0)


def _peak(group: Group, device: Device) -> float:
    """Operations per second with many rows of activations."""
    measured = _measured(group, device, " many")
    if measured is None and _multiplies_packed(group):
        return _peak_of_passes(group, device)
    if measured is None and group.rung.startswith("numba."):
        counted = instructions.seconds_of_product(device, group.format)
        measured = 2 / counted if counted else None
    return (
        measured
        or _peak_of("int8" if group.rung.startswith(("numba.row", "numba.mapped")) else "f32", device) * _PEAK_SHARE
    )


def _peak_of_passes(group: Group, device: Device) -> float:
    """Operations per second where a pass reads the weights once for ``MOST_ROWS`` rows, of which a workgroup decodes
    them for ``SHARED_ROWS``."""
    bandwidth = (device.bandwidth or _SLOWEST_BANDWIDTH) * _share(device)
    counted = MOST_ROWS // SHARED_ROWS * 2 * _instructions(group, device, SHARED_ROWS)
    computed = group.count * counted / _peak_of("f32", device)
    return 2 * MOST_ROWS * group.count / max(group.bytes / bandwidth, computed)


def _measured(group: Group, device: Device, rows: str = "") -> float | None:
    """Return the measured rate of a format, else the median over the formats that its rung takes too; None without
    any."""
    if known := device.rates.get(f"{group.rung} {group.format}{rows}"):
        return known
    rung, many = f"{group.rung} ", rows == " many"
    rates = device.rates.items()
    like = sorted(rate for name, rate in rates if name.startswith(rung) and name.endswith(" many") == many)
    if not like or not group.rung.startswith("numba."):
        return None
    return (like[(len(like) - 1) // 2] + like[len(like) // 2]) / 2


def _peak_of(dtype: str, device: Device) -> float:
    return device.peaks.get(dtype) or device.peaks.get("f32") or _SLOWEST_PEAK


def in_turn(parts: Iterable[Rates]) -> Rates:
    """Return the rates of a model whose parts are computed one after the other: their times add."""
    parts = list(parts)
    return Rates(1 / sum(1 / part.decode for part in parts), 1 / sum(1 / part.prefill for part in parts))
