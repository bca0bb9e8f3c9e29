"""Predicted bytes of a model on a device, by what they hold, and how far the truth may lie above them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from rung.core.types import YES, Case, Device, Level, MemoryUse, Proof, Verdict, no
from rung.core.value import FrozenDict
from rung.kernels.cuda.attention_source import part_floats, parts_of
from rung.kernels.cuda.block_readers import BLOCKS
from rung.kernels.cuda.source import CHOICE_BYTES, COUNTS, FOUND_BYTES, MOST_AHEAD, activation_bytes
from rung.kernels.webgpu.info import ONE_PART, part_bytes
from rung.kernels.webgpu.layouts import UNIT
from rung.models.card import Decoder
from rung.models.decoder_memory import CHUNK, IN_BLOCKS
from rung.models.roles import layer_of
from rung.ops import LADDERS
from rung.ops.linear import DECODING
from rung.planning.network_spec import Subject
from rung.planning.weight_plan import Weight, compute_dtype

_MB = 2**20
#: Resident bytes of the process before any weight: Python, torch for CPUs, Numba and its compiled kernels.
#: ``rung calibrate`` replaces it by what this machine shows (``Device.details["runtime_bytes"]``).
RUNTIME_CPU = 345 * _MB
#: The same without torch, which language models of packed weights do not need (``benchmarks/small_models.py``).
RUNTIME_LEAN = 150 * _MB
#: The context of a GPU and the libraries that torch loads there, where nobody measured: 250 to 600 MB are usual.
RUNTIME_GPU = 400 * _MB
#: How far off a prediction may be: after rung calibrate on a steady machine, after a probe, from the catalog alone.
#: No prediction from rates of a GPU has been held against one yet: they are trusted like a probe.
_CALIBRATED, _PROBED, _TABLE = 0.2, 0.35, 0.5


def computes(device: Device) -> Verdict:
    """Return whether a device is worth planning for: a CPU, or a GPU that multiplies, as a probe or the catalog
    says."""
    if device.kind == "webgpu" and not any("webgpu" in rung.kinds for rung in LADDERS["decode_step"].rungs):
        return no("no rung computes through WebGPU yet")
    found = [device.capability(f"matmul.{dtype}") for dtype in ("f32", "f16", "bf16")]
    if device.kind == "cpu" or any(c.level in (Level.NATIVE, Level.EMULATED) for c in found):
        return YES
    return no(found[0].source or "nobody knows what it can do; rung devices --probe finds out")


def uncertainty(device: Device) -> float:
    """How far off the predicted speed may be, as a share of it."""
    if device.rates:
        share = _CALIBRATED if device.kind == "cpu" else _PROBED
        return max(share, device.rates.get("spread", 0.0))
    probed = any(c.proof is Proof.PROBE for c in device.capabilities.values())
    return _PROBED if probed else _TABLE


#: What transformers, the classes of a model and the kernels of its layers take beside that, on a CPU; and what the heap
#: of a network that transformers builds keeps of activations for those that come next.
_TRANSFORMERS, _HEAP = 225 * _MB, 32 * _MB
#: What diffusers takes beside that on a CPU, with transformers, a pipeline's classes and its rehearsal
#: (``benchmarks/real_pipelines.py``: 546 to 550 MB in all before any weight is read).
_DIFFUSERS = 200 * _MB
#: Bytes of a tokenizer for each token of its vocabulary: the piece, its number and its score, in three tables.
_TOKEN = 230
#: torch's allocator rounds up to multiples of this many bytes.
_ALLOCATED = 512
#: What the kernels keep beside the activations, and what is read of a file and not yet given back.
_WORKSPACE = 8 * _MB
#: Bytes for each token of the context beside the cache: angles of rotation, scores, the text and its tokens.
_CONTEXT_TOKEN = 1800
#: The largest slab of a weight that is decoded at once, in f32.
_SLAB = 32 * _MB
#: Rungs that decode a slab before they multiply many rows; that of stored floats takes few by itself.
_DECODING = (*DECODING, "numba.stored", "cuda.rows", "cuda.stored")
#: The truth may lie this far above: a share of what is estimated, and on a CPU what compiling new kernels takes.
_BOUND_SHARE, _BOUND_CPU = 0.05, 96 * _MB


#: Whether activations are floats, int8 or both: three times, see ``activations_taken``.
Taken = tuple[Collection[bool], Collection[bool], Collection[bool]]
INTEGERS: Taken = ((False,), (False,), (False,))


def weights_on(
    weights: Iterable[Weight],
    first: int,
    last: int,
    layers: int,
    tied: bool,
    encoder_layers: int = 0,
    embeds: bool | None = None,
) -> list[Weight]:
    """The weights that a device with the layers [first, last) holds; layers of a decoder count after its encoder's.

    The first device holds the embedding, or the one that ``embeds``; the last one the final norm and the head, which
    for a tied head means a second copy of the embedding when that is another device.
    """
    found = []
    for weight in weights:
        role = weight.tensor.role
        side, _, rest = role.partition(".")
        layer = layer_of(rest if side in ("encoder", "decoder") else role)
        if layer is not None and side == "decoder":
            layer += encoder_layers
        starts, ends = first == 0 if embeds is None else embeds, last == layers
        inside = layer is not None and first <= layer < last
        looked_up = role == "embed" and (starts or (tied and ends))
        if inside or looked_up or (layer is None and ends and role != "embed"):
            found.append(weight)
    return found


def memory_use(
    weights: tuple[int, int],
    subject: Subject,
    device: Device,
    layers: int,
    context: int,
    cache_dtype: str,
    batch: int = 1,
    width: int | None = None,
    torch: bool = True,
    block: int = 0,
    taken: Taken = INTEGERS,
    rank: int = 0,
) -> MemoryUse:
    """Bytes on one device that holds so many layers, for a full context of ``batch`` sequences.

    ``weights``: the bytes of the weights there and of their workspace. ``width``: bytes of a number in parts of
    pipelines (default: 2, and 4 on a CPU that does not multiply 16 bits faster). ``torch``: whether it is imported.
    ``block``: positions of a block of the cache, 0 for a sequence in one. ``taken``: see ``activations_taken``.
    ``rank``: the highest of adapters, 0 for none.
    """
    slow = device.kind == "cpu" and compute_dtype(device, lossless=False) == "f32"
    width = width or (4 if slow else 2)
    converts = _converts(subject, device, context, cache_dtype)
    parts = _parts_bytes(subject, device, context, batch, taken, rank)
    heap = _HEAP if subject.borrowed and subject.generates and device.kind == "cpu" else 0
    return bounded(
        MemoryUse(
            weights=weights[0],
            kv_cache=subject.cache_bytes(context, cache_dtype, layers, batch, block),
            activations=subject.activation_bytes(context, batch, converts, width),
            workspace=weights[1] + _CONTEXT_TOKEN * context + heap + parts,
            runtime=runtime(subject, device, torch),
        ),
        device,
    )


def _parts_bytes(subject: Subject, device: Device, context: int, batch: int, taken: Taken, rank: int) -> int:
    """Bytes of what whole tokens keep on a GPU beside the network's: what parts of attention over long contexts leave
    through WebGPU, and the buffers of programs in CUDA C."""
    if subject.decoder is None or subject.borrowed:
        return 0
    if device.kind in ("cuda", "rocm"):
        return programs_bytes(subject.decoder, context, batch, taken, rank)
    if device.kind != "webgpu" or context <= ONE_PART:
        return 0
    return part_bytes(subject.decoder.heads, subject.decoder.head_dim)


def activations_taken(weights: Iterable[Weight]) -> Taken:
    """Return whether kernels in CUDA C take activations as floats (True), as int8 (False) or, of weights in several
    formats, both: behind norms, behind attention, and between the products of an MLP."""
    found: tuple[set[bool], set[bool], set[bool]] = (set(), set(), set())
    by_role = {weight.tensor.role: weight for weight in weights if weight.multiplies}
    if "head" in by_role:  # else the embedding is it
        by_role.pop("embed", None)
    for role, weight in by_role.items():
        found[{"o": 1, "down": 2}.get(role.rpartition(".")[2], 0)].add(_looks_up(weight))
    return found


def _looks_up(weight: Weight) -> bool:
    """Return whether a kernel in CUDA C indexes a table of float32 with the codes of a weight."""
    name = weight.format.name.split(":")[0]
    if weight.rung == "cuda.stored" and name in BLOCKS:
        return bool(BLOCKS[name].table)
    return name.startswith(("nf4", "fp4", "mxfp4", "nvfp4", "iq", "tq"))


def programs_bytes(shape: Decoder, context: int, batch: int, taken: Taken = INTEGERS, rank: int = 0) -> int:
    """Bytes of the programs of ``cuda.step`` for tokens of up to ``batch`` sequences: those without adapters, and with
    a ``rank``, the highest of adapters, as many again."""
    counts = [count for count in COUNTS if count < 2 * batch]
    return sum(program_bytes(shape, context, count, taken, each) for count in counts for each in {0, rank})


def program_bytes(shape: Decoder, context: int, count: int, taken: Taken = INTEGERS, rank: int = 0) -> int:
    """Bytes of the buffers of ``cuda.step`` for a token of ``count`` sequences, each rounded up to torch's 512; the
    numbers of the blocks of a cache, which are few, are left out. With adapters of a ``rank`` all activations are there
    as floats, too, and what the first factors of three weights give."""
    mixed, qkv = shape.heads * shape.head_dim, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    parts = shape.heads * parts_of(context) * part_floats(shape.head_dim)
    turns, chooses = len(shape.ropes) * shape.head_dim, count == 1
    inputs = 4 * count * (shape.hidden + turns) + (CHOICE_BYTES + 4 * MOST_AHEAD * turns) * chooses
    widths = (qkv, shape.hidden, shape.feed_forward, shape.vocabulary, parts)
    found = [inputs, FOUND_BYTES * chooses, *(4 * count * width for width in widths)]
    for kinds, columns in zip(taken, (shape.hidden, mixed, shape.feed_forward), strict=True):
        found += [count * activation_bytes(looks_up, columns) for looks_up in {*kinds, *([True] if rank else ())}]
    found.append(4 * count * 3 * rank)
    found += [4 * shape.hidden] * (len(shape.layers) * (4 if shape.post_norms else 2) + 1)
    found += [4 * shape.head_dim] * (2 * len(shape.layers) * shape.qk_norm)
    found += [4 * mixed, *2 * [4 * (qkv - mixed) // 2]] * (len(shape.layers) * shape.attention_bias)
    found.append(4 * max(shape.feed_forward // UNIT, count * shape.heads))
    return sum(-(-each // _ALLOCATED) * _ALLOCATED for each in found)


def workspace(weights: Iterable[Weight]) -> int:
    """Bytes that loading and multiplying need for a moment: a slab of the largest weight that is decoded before many
    rows are multiplied with it, in f32 and once more in what is computed in. A head is multiplied with one row."""
    decoded = (
        w.count * 4
        for w in weights
        if w.rung in _DECODING and w.multiplies and (w.rung != "numba.stored" or w.tensor.role not in ("head", "embed"))
    )
    return _WORKSPACE + 2 * min(max(decoded, default=0), _SLAB)


def runtime(subject: Subject, device: Device, torch: bool = True) -> int:
    """Bytes before any weight: measured, from the catalog, or as is usual; on a CPU with the tokenizer."""
    known = device.details.get("runtime_bytes")
    if device.kind != "cpu":
        return int(known or RUNTIME_GPU)
    libraries = _DIFFUSERS if subject.kind == "pipeline" else _TRANSFORMERS if subject.borrowed else 0
    text = subject.generates or subject.encoder is not None
    tokenizer = _TOKEN * subject.shape.vocabulary if text else 0
    return int(known or (RUNTIME_CPU if torch else RUNTIME_LEAN)) + libraries + tokenizer


def bounded(use: MemoryUse, device: Device) -> MemoryUse:
    """The same use with its error bound: weights and cache are counted, the rest is estimated."""
    share = round(_BOUND_SHARE * (use.total - use.weights - use.kv_cache))
    return replace(use, bound=max(share, _BOUND_CPU) if device.kind == "cpu" else share)


def _converts(subject: Subject, device: Device, context: int, cache_dtype: str) -> bool:
    """Return whether attention there wants the cache in f32, with a mask, while a prompt is read.

    A cache in blocks is read as it is or not at all, but by torch.
    """
    shape = subject.decoder
    if shape is None:
        return True
    if cache_dtype in IN_BLOCKS:
        return device.kind in ("cuda", "rocm")
    sizes = (min(CHUNK, context), context, shape.heads, shape.kv_heads, shape.head_dim)
    options = FrozenDict({"window": None, "softcap": shape.attention_softcap})
    rung = LADDERS["attention"].climb(device, Case("attention", cache_dtype, "f32", sizes, options)).rung
    return rung is None or not rung.name.startswith("numba.")
