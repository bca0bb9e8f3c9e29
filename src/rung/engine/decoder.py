"""The lean decoder: bound weights, the rung of ``decode_step`` that computes with them, and the caches of sequences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rung.core.errors import OutOfMemory, UsageError
from rung.core.shield import import_whole
from rung.engine.scheduling.kv_cache import BlockPool, Cache
from rung.engine.scheduling.prefix_cache import PrefixCache
from rung.engine.scheduling.prefix_files import PrefixFiles
from rung.formats.codec import Floats
from rung.models.adapters.adapter import LowRank
from rung.models.decoder_memory import CHUNK
from rung.ops.decode_step.low_rank import BoundAdapter
from rung.ops.decode_step.parts import Pool, SequenceRows
from rung.ops.decode_step.weights import Weights
from rung.ops.token_choice import Row


class Step(Protocol):
    """A rung of ``rung.ops.decode_step``, which says what its attributes mean."""

    @property
    def block(self) -> int:
        """See there."""

    def same_bytes(self, state: Any) -> bool:
        """See there."""

    def prepare(self, weights: Weights, pool: Pool, *, threads: int) -> Any:
        """Bind weights to the memory of caches."""

    def apply(self, state: Any, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [outputs, vocabulary] of a batch."""

    def look_ahead(self, state: Any) -> int:
        """See there."""

    def choose(self, state: Any, rows: SequenceRows, settings: Sequence[Row]) -> Sequence[int]:
        """See there; no token where a rung failed."""

    def rows_without_torch(self, state: Any) -> int | None:
        """See there."""


class Decoder:
    """Compute tokens of sequences whose caches lie in one pool; see ``rung.engine.scheduling.scheduler.Backend``.

    ``singles``: where prompts are read with torch and few tokens are not, prompts of at most so many tokens are
    read a few tokens at a time as long as torch is not imported: importing it takes longer.
    """

    def __init__(
        self, weights: Weights, pool: BlockPool, step: Step, threads: int = 1, singles: int = 0, parallel: int = 1
    ) -> None:
        self.weights, self.pool, self.parallel = weights, pool, parallel
        self.prefixes = PrefixCache(pool)
        self._files: PrefixFiles | None = None
        #: Returns what keys and values depend on: the model's files and how it computes.
        self.identity: Callable[[], bytes] = bytes
        self.step, self._singles, self._threads = step, singles, threads
        #: What sequences have that name no adapter.
        self.default_adapter: BoundAdapter | None = None
        self._state = step.prepare(weights, pool, threads=threads)

    @property
    def context(self) -> int:
        """Return how many tokens a sequence may have."""
        return self.pool.context

    @property
    def vocabulary(self) -> int:
        """Return how many tokens the model knows."""
        return self.weights.shape.vocabulary

    @property
    def same_bytes(self) -> bool:
        """Return whether logits do not depend on how tokens are put together."""
        return self.step.same_bytes(self._state)

    @property
    def look_ahead(self) -> int:
        """Return how many tokens ``choose`` chooses at most."""
        return self.step.look_ahead(self._state)

    def keep_in_files(self, files: PrefixFiles) -> None:
        """Keep what sequences have computed in files, and begin with what is there."""
        self._files = files
        self.prefixes = PrefixCache(self.pool, files)
        self.pool.populate(files.nbytes)

    def bind_adapter(self, changes: Mapping[str, Sequence[LowRank]]) -> BoundAdapter:
        """Return the changes of an adapter, by the role of the weight, for sequences of this decoder."""
        return BoundAdapter(self.weights, changes, self._threads)

    def begin(
        self, ids: Sequence[int], owner: str = "", share: bool = False, adapter: BoundAdapter | None = None
    ) -> Cache | None:
        """Return a cache with room for ``ids`` and one token more, or None where there is no room now.

        With ``share`` it has what is known of the beginning of ``ids``, all but the last at most. Its tokens are
        computed with ``adapter``, by default the ``default_adapter``.
        """
        cache = Cache(self.pool)
        cache.adapter = adapter or self.default_adapter
        if share:
            self.prefixes.attach(cache, ids[:-1], tree_of(cache.adapter, owner))
        try:
            cache.admit(min(len(ids) + 1, self.pool.context))
        except OutOfMemory:
            cache.release()
            return None
        return cache

    def reserve(self, cache: Cache, count: int) -> None:
        """Make room for ``count`` tokens in all. Raises ``OutOfMemory``."""
        cache.reserve(count)

    def keep(self, cache: Cache, owner: str) -> None:
        """Let other sequences of an owner share the whole blocks of a cache, and its windows at checkpoints."""
        come = sorted(length for length in cache.checkpoints if length <= cache.length)
        for length in come:
            self.prefixes.insert(cache, tree_of(cache.adapter, owner), length, checkpoint=True)
        cache.checkpoints -= frozenset(come)
        if cache.length // self.pool.block > cache.kept:
            cache.kept = cache.length // self.pool.block
            self.prefixes.insert(cache, tree_of(cache.adapter, owner), cache.kept * self.pool.block, checkpoint=False)
        cache.slide()

    def end(self, cache: Cache, owner: str, share: bool) -> None:
        """Give a cache back; with ``share`` what it has is kept until there is no room."""
        if share:
            self.prefixes.insert(cache, tree_of(cache.adapter, owner), cache.length, checkpoint=True)
            self.prefixes.write_files(cache.ids, tree_of(cache.adapter, owner))
        cache.release()

    def recover(self, caches: Sequence[Cache]) -> None:
        """Count the uses of blocks anew after an interrupt in the midst of counting; forget earlier sequences."""
        self.prefixes.settle_all()  # threads that write them read blocks
        self.prefixes = PrefixCache(self.pool, self._files)
        self.pool.recount(caches)

    def chunk(self, count: int) -> int:
        """Return how many tokens of a prompt of ``count`` are read together."""
        few = self.step.rows_without_torch(self._state)
        if few is None or not few or "torch" in sys.modules or count > max(self._singles, few):
            return CHUNK
        return few

    def get_ready(self, count: int) -> None:
        """Import what computing so many tokens of a sequence needs, so that it does not count as computing."""
        few = self.step.rows_without_torch(self._state)
        if few is not None and count > few:
            import_whole("rung.ops.decode_step.network")

    def choose(self, cache: Cache, ids: Sequence[int], settings: Sequence[Row]) -> list[int]:
        """Choose next tokens on the device, up to one by each of the settings; none where a rung failed."""
        rows = SequenceRows(ids, cache.length, cache, 1, cache.adapter)
        return [int(token) for token in self.step.choose(self._state, rows, settings)]

    def compute(self, batch: Sequence[tuple[Cache, Sequence[int], int, Floats | None]]) -> Floats:
        """Compute the next tokens of each cache; return logits [rows, vocabulary] of the last so many of each.

        They lie in memory that the next call writes to. Hidden states go to the arrays that there are.
        """
        return self.step.apply(self._state, self.rows_of(batch))

    def rows_of(self, batch: Sequence[tuple[Cache, Sequence[int], int, Floats | None]]) -> list[SequenceRows]:
        """Return a batch as rungs take it."""
        return [
            SequenceRows(ids, cache.length, cache, count, cache.adapter, states)
            for cache, ids, count, states in batch
            if isinstance(cache, Cache)
        ]


def tree_of(adapter: BoundAdapter | None, owner: str) -> str:
    """Return the owner of a tree of the prefix cache: keys and values of another adapter are others."""
    return tree_of_key("" if adapter is None else adapter.key, owner)


def tree_of_key(adapter: str, owner: str) -> str:
    """Return the owner of a tree by the key of the adapter, empty for none."""
    return f"{owner}\0{adapter}" if adapter else owner


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raise ``UsageError`` where there is no token, or one that the model does not know."""
    if not ids:
        raise UsageError("There is no token to compute", ["the prompt is empty"], ["a prompt with text in it"])
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise UsageError(
            f"Token ids must lie in 0 to {vocabulary - 1}, found {min(ids)} to {max(ids)}",
            [f"the model's vocabulary has {vocabulary} tokens"],
            code="value-out-of-range",
        )
