"""A network of transformers in the place of the lean decoder, for architectures that it does not build."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rung import formats
from rung.core.errors import UsageError
from rung.core.types import Device, Plan
from rung.engine import process_memory
from rung.engine.kv_cache import Tokens
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.hub.networks.language import Kept, read, write_tokenizer
from rung.models.adapters.adapter import LowRank
from rung.models.cards.network import NetworkCard
from rung.models.decoder_memory import CHUNK
from rung.nn import QuantLinear
from rung.nn.quantized.packed import pack
from rung.ops.decode_step.low_rank import LowRankUpdates
from rung.planning.gguf_mixtures import storage
from rung.planning.network_spec import Subject
from rung.planning.weight_plan import recipe
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
    place = torch.device(torch_name(device.id))
    if place.type == "cpu":
        torch.set_num_threads(plan.threads)
    asked = None if plan.format == "stored" else storage(plan.format)
    weights = recipe(Subject.of_card(card), asked, device, plan.dtype, packed=True)
    stored = [weight for weight in weights if weight.tensor.source]
    wanted = {weight.tensor.name: weight.format for weight in stored or weights if weight.multiplies}
    tokenizer = _tokenizer(card)
    network = read(Path(card.path), card.network, wanted, plan.dtype, place)
    for name, several in changes.items():
        _put_beside(network.get_submodule(name), several, plan.threads)
    if place.type == "cpu":
        pack(network, plan.dtype, plan.threads)
        process_memory.give_back()
        process_memory.keep_what_is_freed()
    engine = f"transformers {importlib.metadata.version('transformers')}: {card.network}"
    journal.ran("decode_step", engine)
    note = f"{engine} computes it: {card.why}"
    journal.notes.append(note)
    journal.say(note)
    kept = Kept(network, place, plan.context)
    return TransformersDecoder(kept, plan.context, card.component.shape.vocabulary), tokenizer


def _put_beside(layer: Any, changes: Sequence[LowRank], threads: int) -> None:
    """A layer of the network gives its sum with those changes from now on."""

    def weight() -> Encoded:
        held = layer.weight.detach().float().cpu()
        turned = held if isinstance(layer, nn.Linear) else held.T  # GPT-2 keeps its weights as [in, out]
        return formats.encode(turned.contiguous().numpy(), formats.get("f32"))

    encoded = layer.stored.encoded if isinstance(layer, QuantLinear) else weight
    beside = LowRankUpdates(changes, encoded, next(layer.parameters()).device, threads)

    def add(layer: Any, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
        x, y = given[0].float().flatten(0, -2), result.flatten(0, -2).to(torch.float32, copy=True)
        if layer.bias is None:
            return beside.added(y, x).view(result.shape).to(result.dtype)
        value: Tensor = (beside.added(y - layer.bias, x) + layer.bias).view(result.shape).to(result.dtype)
        return value

    layer.register_forward_hook(add)


def _tokenizer(card: NetworkCard) -> Tokenizer:
    if card.tokenizer:
        return Tokenizer.from_card(card)
    with tempfile.TemporaryDirectory(prefix="rung-tokenizer-") as made:
        written = write_tokenizer(Path(card.path), Path(made))
        return Tokenizer.from_file(written, card.end_tokens, card.bos_token if card.add_bos else None)


class ReadTokens(Tokens):
    """The tokens that the network has read. What it keeps of them cannot be shortened, only forgotten.

    While it reads, and after that failed, none count: it may keep some of them, and forgets them before it reads again.
    """

    def __init__(self, context: int, kept: Kept) -> None:
        super().__init__(context)
        self._kept = kept

    def truncate(self, length: int) -> None:
        """Forgets every token from position ``length`` on, which is none of them or all."""
        if length < self.length or not length:
            super().truncate(0)
            self._kept.forget()

    def shared(self, ids: Sequence[int]) -> int:
        """All tokens that are held, where ``ids`` begin with them and go on; else none."""
        return self.length if super().shared(ids) == self.length < len(ids) else 0


class TransformersDecoder:
    """Stand in for ``rung.engine.decoder.Decoder`` with a network of transformers."""

    def __init__(self, kept: Kept, context: int, vocabulary: int) -> None:
        self._kept, self._vocabulary = kept, vocabulary
        self.cache: Tokens = ReadTokens(context, kept)

    def get_ready(self, count: int) -> bool:
        """Nothing more is needed; prompts are read many tokens at once."""
        return True

    def step(self, token: int) -> Floats:
        """Logits [vocabulary] f32 after one more token. Raises ``ContextTooLong`` or ``UsageError``."""
        return self.prefill([token])

    def prefill(self, ids: Sequence[int], on_read: Callable[[int, int], None] = lambda done, total: None) -> Floats:
        """Logits [vocabulary] f32 after the last of ``ids``, which are read after what is held; raises as ``step``.

        ``on_read`` is called with (tokens read, tokens to read) before, between and after the chunks.
        """
        (*_, last) = self._chunks(ids, each=False, on_read=on_read)
        found: Floats = last[-1].numpy()
        return found

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits [positions, vocabulary] f32 after each of ``ids``; raises as ``step``."""
        return torch.cat(self._chunks(ids, each=True))

    def _chunks(
        self, ids: Sequence[int], each: bool, on_read: Callable[[int, int], None] = lambda done, total: None
    ) -> list[torch.Tensor]:
        if not ids or min(ids) < 0 or max(ids) >= self._vocabulary:
            raise UsageError(
                f"Token ids must lie in 0 to {self._vocabulary - 1}, and be one at least", code="value-out-of-range"
            )
        self.cache.room(self.cache.length, len(ids))
        if not self.cache.length:
            self._kept.forget()  # what a call that failed has left
        found, left = [], list(ids)
        while left:
            on_read(len(ids) - len(left), len(ids))
            count = self._kept.at_once(CHUNK) or len(left)
            # what fails (Ctrl-C, a full memory) leaves some layers with these tokens: nothing counts until all have
            held, self.cache.ids = self.cache.ids, []
            found.append(self._kept.forward(left[:count], each))
            held += left[:count]
            self.cache.ids = held
            del left[:count]
        on_read(len(ids), len(ids))
        return found
