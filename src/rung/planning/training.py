"""Predicted bytes of training a language model: full, or low-rank adapters over frozen weights.

Sources: weights, gradients and moments in bytes per trained weight as in ZeRO (Rajbhandari et al. 2020, section 3: 16
bytes with mixed-precision Adam); activations kept for the backward pass as in Korthikanti et al. 2022 (with fused
attention, which keeps no scores), counted anew for what transformers' layers keep: gated feed-forward parts, and norms
that compute in f32; adapters as in LoRA (Hu et al. 2021). ``benchmarks/training_memory.py`` holds it against steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rung.core.errors import UsageError
from rung.core.text import did_you_mean
from rung.core.types import FLOAT_BYTES, YES, Device, MemoryUse, Verdict, no
from rung.planning.memory import bounded, runtime
from rung.planning.network_spec import Subject
from rung.planning.weight_plan import Storage, Weight

WAYS = ("lora", "full")
#: Bytes of state for each trained weight: moments in f32, or in blocks of 8 bits; factored ones count as nothing.
OPTIMIZERS: Mapping[str, int] = {"adamw": 8, "adamw8bit": 2, "lion": 4, "adafactor": 0, "momentum": 4, "sgd": 0}


def optimizer_state(name: str) -> int:
    """Bytes of state for each trained weight. Raises ``UsageError`` for an optimizer that nobody knows."""
    if name not in OPTIMIZERS:
        raise UsageError(
            f"There is no optimizer {name!r}.{did_you_mean(name, OPTIMIZERS)}",
            [f"known: {', '.join(OPTIMIZERS)}"],
            ["rung check MODEL --training lora --optimizer adamw"],
            code="name-unknown",
        )
    return OPTIMIZERS[name]


#: Bytes for each token and word of the vocabulary when the way back begins: the logarithms of the softmax, the gradient
#: of the loss and that of the softmax, all in f32.
_LOGITS = 12


def trainable(way: str, storage: Storage, subject: Subject) -> Verdict:
    """Return whether a model stored so can be trained so: all weights must be floats to be moved themselves."""
    if not subject.generates:
        return no(f"rung knows the training of language models, and this is a network of the kind {subject.role}")
    if way == "full":
        name = storage.name if storage is not None else ""
        stored = {tensor.format for tensor in subject.tensors} if storage is None else {name}
        if not stored <= set(FLOAT_BYTES):
            return no("full training moves the weights themselves: they must be f32, bf16 or f16, not in blocks")
    return YES


def training_use(
    weights: Iterable[Weight],
    subject: Subject,
    device: Device,
    *,
    way: str,
    optimizer: str,
    rank: int,
    batch: int,
    sequence: int,
    checkpointing: bool,
) -> MemoryUse:
    """Bytes on one device while a step of ``batch`` sequences of ``sequence`` tokens is trained.

    Trained weights of 16 bits have a copy in f32 beside them, which counts as the optimizer's; adapters are f32.
    The workspace is the largest weight: in 16 bits where it multiplies and is stored in blocks, in f32 where it moves.
    Gradients count beside all activations, as they lie when they are accumulated over several batches.
    """
    kept = list(weights)
    state = optimizer_state(optimizer)
    if way == "full":
        trained = sum(weight.count for weight in kept)
        wide = [FLOAT_BYTES.get(w.format.name, 2) if w.multiplies else 4 for w in kept]
        gradients = sum(weight.count * width for weight, width in zip(kept, wide, strict=True))
        copies = sum(4 * weight.count for weight, width in zip(kept, wide, strict=True) if width == 2)
        adapters = 0
    else:
        trained = adapter_weights(kept, rank)
        gradients, copies, adapters = 4 * trained, 0, 4 * trained
    f32 = all(weight.format.name == "f32" for weight in kept)
    use = MemoryUse(
        weights=sum(weight.bytes for weight in kept) + adapters,
        kv_cache=0,
        activations=activation_bytes(subject, batch, sequence, checkpointing, 4 if f32 else 2),
        workspace=(4 if way == "full" else 2) * max(weight.count for weight in kept),
        runtime=runtime(subject, device),
        gradients=gradients,
        optimizer=state * trained + copies,
    )
    return bounded(use, device)


def adapter_weights(weights: Iterable[Weight], rank: int) -> int:
    """Weights of adapters of that rank on every linear layer; the embedding and the head have none."""
    return rank * sum(weight.adapter_row for weight in weights)


def activation_bytes(subject: Subject, batch: int, sequence: int, checkpointing: bool, width: int = 2) -> int:
    """Bytes alive when the way back begins, of what is computed in ``width`` bytes; with checkpointing of each layer
    its input, and one layer whole while it goes back."""
    shape = subject.shape
    experts = max(shape.experts_per_token, 1) if shape.experts else 0
    wide = shape.feed_forward if not experts else experts * (shape.expert_feed_forward or shape.feed_forward)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # of two norms the input in f32, what it is divided by its size, and the result
    norms = 2 * shape.hidden * (4 + 2 * width)
    # queries, keys, values, what attention gives; gate, its activation, up and their product
    layer = norms + width * (2 * q + 2 * kv + 4 * wide)
    going_back = 3 * width * wide + (layer if checkpointing else 0)
    kept = subject.layers * (width * shape.hidden if checkpointing else layer)
    return batch * sequence * (kept + max(going_back, _LOGITS * shape.vocabulary))
