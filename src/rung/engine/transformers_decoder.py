"""A network of transformers in the place of the lean decoder, for architectures that it does not build."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rung import formats
from rung.core.types import Device, Plan
from rung.engine import planning
from rung.engine.scheduling.kv_cache import Tokens
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.hub.networks.language import Kept, read, write_tokenizer
from rung.models.adapters.adapter import LowRank
from rung.models.cards.folder import NetworkCard
from rung.models.decoder_memory import CHUNK
from rung.nn import QuantLinear
from rung.nn.quantized.packed import pack
from rung.ops.decode_step.low_rank import BoundAdapter, LowRankUpdates
from rung.ops.token_choice import Row
from rung.planning.gguf_mixtures import storage
from rung.planning.network_spec import Subject
from rung.planning.weight_plan import plan_weights
from rung.run.journal import Journal
from rung.run.torch_device import torch_name


def bind(
    card: NetworkCard,
    plan: Plan,
    devices: Sequence[Device],
    journal: Journal,
    changes: Mapping[str, Sequence[LowRank]],
) -> tuple[TransformersDecoder, Tokenizer]:
    """Read the network and its tokenizer; ``changes`` are adapters', by layer. Raise what reading raises."""
    device = next(one for one in devices if one.id == plan.placements[0].device)
    target = torch.device(torch_name(device.id))
    if target.type == "cpu":
        torch.set_num_threads(plan.threads)
    requested = None if plan.format == "stored" else storage(plan.format)
    weights = plan_weights(Subject.of_card(card), requested, device, plan.dtype, packed=True)
    stored = [weight for weight in weights if weight.tensor.source]
    weight_formats = {weight.tensor.name: weight.format for weight in stored or weights if weight.multiplies}
    tokenizer = _tokenizer(card)
    network = read(Path(card.path), card.network, weight_formats, plan.dtype, target)
    for name, several in changes.items():
        _add_updates(network.get_submodule(name), several, plan.threads)
    if target.type == "cpu":
        pack(network, plan.dtype, plan.threads)
        planning.give_back()
        planning.keep_what_is_freed()
    engine = f"transformers {importlib.metadata.version('transformers')}: {card.network}"
    journal.ran("decode_step", engine)
    note = f"{engine} computes it: {card.why}"
    journal.notes.append(note)
    journal.say(note)
    kept = Kept(network, target, plan.context)
    return TransformersDecoder(kept, plan.context, card.component.shape.vocabulary), tokenizer


def _add_updates(layer: Any, changes: Sequence[LowRank], threads: int) -> None:
    """A layer of the network gives its sum with those changes from now on."""

    def weight() -> Encoded:
        stored = layer.weight.detach().float().cpu()
        turned = stored if isinstance(layer, nn.Linear) else stored.T  # GPT-2 keeps its weights as [in, out]
        return formats.encode(turned.contiguous().numpy(), formats.get("f32"))

    encoded = layer.stored.encoded if isinstance(layer, QuantLinear) else weight
    updates = LowRankUpdates(changes, encoded, next(layer.parameters()).device, threads)

    def add(layer: Any, inputs: tuple[Tensor, ...], result: Tensor) -> Tensor:
        x, y = inputs[0].float().flatten(0, -2), result.flatten(0, -2).to(torch.float32, copy=True)
        if layer.bias is None:
            return updates.added(y, x).view(result.shape).to(result.dtype)
        value: Tensor = (updates.added(y - layer.bias, x) + layer.bias).view(result.shape).to(result.dtype)
        return value

    layer.register_forward_hook(add)


def _tokenizer(card: NetworkCard) -> Tokenizer:
    if card.tokenizer:
        return Tokenizer.from_card(card)
    with tempfile.TemporaryDirectory(prefix="rung-tokenizer-") as folder:
        written = write_tokenizer(Path(card.path), Path(folder))
        return Tokenizer.from_file(written, card.end_tokens, card.bos_token if card.add_bos else None)


class ReadTokens(Tokens):
    """The tokens that the network has read. What it keeps of them cannot be shortened, only forgotten.

    While it reads, until the tokens are counted, none count: it may have read some of them, and forgets all then.
    """

    def __init__(self, context: int, kept: Kept) -> None:
        super().__init__(context)
        self._kept = kept

    def advance(self, ids: Sequence[int]) -> None:
        """Count what the network has read."""
        self.ids = list(self._kept.ids)

    def truncate(self, length: int) -> None:
        """Forget every token from position ``length`` on, which is none of them or all."""
        if length < self.length or not length:
            super().truncate(0)
            self._kept.forget()

    def shared(self, ids: Sequence[int]) -> int:
        """Return the number of tokens where ``ids`` begin with them and go on; else 0."""
        return self.length if super().shared(ids) == self.length < len(ids) else 0


class TransformersDecoder:
    """Compute with a network of transformers, one sequence at a time; see ``scheduling.scheduler.Backend``."""

    parallel = 1
    same_bytes = False
    look_ahead = 0

    def __init__(self, kept: Kept, context: int, vocabulary: int) -> None:
        self.context, self.vocabulary = context, vocabulary
        self.kept, self._owner, self._used = kept, "", False
        self._cache = ReadTokens(context, kept)

    def begin(
        self, ids: Sequence[int], owner: str = "", share: bool = False, adapter: BoundAdapter | None = None
    ) -> Tokens | None:
        """Return the cache, or None where another sequence has it.

        With ``share`` it keeps its tokens where ``ids`` begin with them. Layers have their adapters since they were
        read: ``adapter`` is None.
        """
        if self._used:
            return None
        known = self._cache.shared(ids) if share and owner == self._owner else 0
        self._cache.truncate(known)
        self._owner, self._used = owner, True
        return self._cache

    def reserve(self, cache: Tokens, count: int) -> None:
        """Do nothing: there is room for the context."""

    def keep(self, cache: Tokens, owner: str) -> None:
        """Do nothing: there is one sequence."""

    def end(self, cache: Tokens, owner: str, share: bool) -> None:
        """Give the cache back; what it has is kept for a sequence that begins alike."""
        self._used = False
        if not share:
            cache.truncate(0)

    def recover(self, caches: Sequence[Tokens]) -> None:
        """Note whether a sequence has the cache."""
        self._used = bool(caches)

    def chunk(self, count: int) -> int:
        """Return how many tokens of a prompt of ``count`` are read together."""
        return self.kept.at_once(CHUNK) or count

    def get_ready(self, count: int) -> None:
        """Do nothing: everything is imported."""

    def choose(self, cache: Tokens, ids: Sequence[int], settings: Sequence[Row]) -> list[int]:
        """Choose nothing: networks give logits."""
        return []

    def compute(self, batch: Sequence[tuple[Tokens, Sequence[int], int, Floats | None]]) -> Floats:
        """Compute the next tokens of the cache; return logits [rows, vocabulary] of the last so many.

        Networks give no hidden states.
        """
        ((cache, ids, count, _),) = batch
        if not cache.length:
            self.kept.forget()  # what a call that failed has left
        cache.ids = []  # what fails (Ctrl-C, a full memory) leaves some layers with these tokens: nothing counts then
        found: Floats = self.kept.forward(ids, count > 1).numpy()
        return found[len(found) - count :]
