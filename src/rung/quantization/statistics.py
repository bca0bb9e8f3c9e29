"""Gather what a text says of each weight of a model: which inputs it meets, and how much its outputs matter.

The expected divergence (KL, nats a token) of a model whose weight W [out, in] became W + D is, to second order,
``0.5 * mean over tokens of (g D x)^2``: x [in] is what enters the linear, g [out] the gradient of the surprise of a
next token drawn from the model's own answer (the Fisher information; Martens, arXiv:1412.1193). Here the mean is taken
apart: ``0.5 * sum over rows i of share[i] * d_i H d_i`` with ``H = mean of |g|^2 x x^T`` and ``share[i]`` the part of
``|g|^2`` that is row i's. For the rows of the head g follows from the probabilities alone, and for those of the
embedding x is a token: both are in ``Sensitivity``.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rung.core.errors import BadFile, UsageError
from rung.core.files import state_of
from rung.core.settings import CACHE
from rung.formats.codec import Floats
from rung.models.card import ModelCard
from rung.models.reader import Reader
from rung.quantization.network import Layer, Network, logits

#: Tokens of a window, windows that are computed at once, and tokens whose logits are.
LENGTH, _BATCH, _LOGITS = 512, 2, 128
#: Tokens below which nothing is said of a model.
FEWEST = 128
#: The part of the embedding's importance that all tokens share, also those that are not in the text.
_UNSEEN = 0.1
_VERSION = 1


@dataclass(frozen=True)
class Sensitivity:
    """Hold what is known of one matrix: ``hessian`` [in, in], ``shares`` [out], and ``moments`` [in].

    Moments are the mean squares of its inputs. A tied embedding has a second pair, as it is looked up.
    """

    hessian: Floats
    shares: Floats
    moments: Floats
    looked_up: tuple[Floats, Floats] | None = None

    @property
    def _pairs(self) -> list[tuple[Floats, Floats]]:
        return [(self.hessian, self.shares), *([] if self.looked_up is None else [self.looked_up])]

    def divergence(self, change: Floats) -> float:
        """Return the expected KL of a change [out, in]."""
        return 0.5 * sum(float(_squares(change, hessian) @ shares) for hessian, shares in self._pairs)

    def sample(self, count: int) -> npt.NDArray[np.int64]:
        """Return so many rows, those that matter most more often."""
        likely = np.cumsum(np.mean([shares for _, shares in self._pairs], axis=0, dtype=np.float64))
        places = (np.arange(count) + 0.5) / count * likely[-1]
        found: npt.NDArray[np.int64] = np.searchsorted(likely, places).clip(max=len(likely) - 1)
        return found

    def sampled(self, change: Floats, rows: npt.NDArray[np.int64]) -> float:
        """Return the KL that is expected of a weight of which these sampled rows change by [rows, in]."""
        likely = np.mean([shares[rows] for _, shares in self._pairs], axis=0)
        return 0.5 * sum(
            float(np.mean(_squares(change, hessian) * shares[rows] / np.maximum(likely, 1e-30)))
            for hessian, shares in self._pairs
        )

    def squares(self, weights: Floats, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return ``shares @ weights ** 2`` [in] estimated from the sampled rows [rows, in] of the weights."""
        likely = np.mean([shares[rows] for _, shares in self._pairs], axis=0)
        found: npt.NDArray[np.float64] = (
            (self.shares[rows] / np.maximum(likely, 1e-30)) @ np.square(weights) / len(rows)
        )
        return found

    @property
    def metric(self) -> Floats:
        """Return the matrix [in, in] that rounding minimizes errors in."""
        return self.hessian if self.looked_up is None else self.hessian + self.looked_up[0]


def _squares(change: Floats, hessian: Floats) -> npt.NDArray[np.float64]:
    """Return ``d H d`` of each row."""
    found: npt.NDArray[np.float64] = np.einsum("ij,ij->i", change @ hessian, change, dtype=np.float64)
    return found


class Statistics:
    """The statistics of one model on one text, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digest = folder.name
        self.about: Mapping[str, object] = json.loads((folder / "about.json").read_text())

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the roles of the matrices that the text reaches."""
        return tuple(sorted({path.name.rsplit(".", 2)[0] for path in self.folder.glob("*.hessian.npy")}))

    def columns(self, role: str) -> int:
        """Return the inputs of a matrix."""
        return len(self._load(role, "moments"))

    def of(self, role: str) -> Sensitivity:
        """Return the statistics of a matrix."""
        second = self._path(role, "rows_hessian")
        looked_up = (self._load(role, "rows_hessian"), self._load(role, "rows_shares")) if second.exists() else None
        hessian, shares, moments = (self._load(role, name) for name in ("hessian", "shares", "moments"))
        return Sensitivity(hessian, shares, moments, looked_up)

    def _path(self, role: str, name: str) -> Path:
        return self.folder / f"{role}.{name}.npy"

    def _load(self, role: str, name: str) -> Floats:
        found: Floats = np.load(self._path(role, name))
        return found


def gather(
    card: ModelCard, windows: Tensor, progress: Callable[[str, int, int], None] = lambda label, done, total: None
) -> Statistics:
    """Return the statistics of a model on windows [B, L] of token ids; those of an earlier run where there are any.

    Raises ``UsageError`` for too few tokens, ``BadFile`` where a model computes NaN or Inf.
    """
    if windows.numel() < FEWEST:
        raise UsageError(
            f"The text has {windows.numel()} tokens, too few to judge a model by.",
            [f"at least {FEWEST} are needed, and some thousands are better"],
            ["--text FILE with more text", "leave out --text"],
            code="input-empty",
        )
    digest = hashlib.sha256(f"{_VERSION} {state_of(map(Path, card.files))}".encode())
    digest.update(windows.numpy().tobytes())
    folder: Path = CACHE.read() / "statistics" / digest.hexdigest()[:24]
    if not (folder / "about.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="part-") as whole, fast_products():
            part = Path(whole, "done")
            part.mkdir()
            _Pass(card, windows, part, progress).run()
            (part / "about.json").write_text(json.dumps({"tokens": windows.numel(), "model": card.name}))
            part.replace(folder)
    return Statistics(folder)


@contextmanager
def fast_products() -> Iterator[None]:
    """Let products of matrices round their factors to bf16, where a processor is faster so: sums stay f32."""
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


class _Pass:
    """Forwards through all layers, then backwards: what entered a layer is kept on disk."""

    def __init__(
        self, card: ModelCard, windows: Tensor, folder: Path, progress: Callable[[str, int, int], None]
    ) -> None:
        self.windows, self.folder, self.progress = windows, folder, progress
        self.card = card
        self.total = 2 * len(card.decoder.layers) + 1

    def run(self) -> None:
        """Write the statistics of every matrix."""
        with Reader(self.card) as reader, tempfile.TemporaryDirectory(dir=self.folder.parent) as temporary:
            network, states = Network(self.card, reader, self.windows.shape[1]), _States(Path(temporary))
            with torch.no_grad():
                hidden = network.embed(self.windows)
                for layer in network.layers():
                    self.progress(f"layer {layer.index}", layer.index, self.total)
                    states.put(layer.index, hidden)
                    for part in self._batches():
                        hidden[part] = network.forward(layer, hidden[part])
            gradient = self._head(network, hidden)
            del hidden
            for layer in network.layers(backwards=True):
                self.progress(f"layer {layer.index}, backwards", self.total - 1 - layer.index, self.total)
                gradient = self._backwards(network, layer, states.of(layer.index), gradient)
            self._embedding(network, gradient)

    def _batches(self) -> Iterator[slice]:
        for first in range(0, len(self.windows), _BATCH):
            yield slice(first, first + _BATCH)

    def _head(self, network: Network, states: Tensor) -> Tensor:
        """Record the head, and return the gradient of what enters the final norm."""
        self.progress("head", len(self.card.decoder.layers), self.total)
        head, norm = network.weight(network.head_role), network.weight("norm")
        generator = torch.Generator().manual_seed(0)
        gradient = torch.empty_like(states)
        found = _Sums(*head.shape)
        flat, out = states.reshape(-1, states.shape[-1]), gradient.reshape(-1, states.shape[-1])
        for first in range(0, len(flat), _LOGITS):
            hidden = flat[first : first + _LOGITS].clone().requires_grad_(True)
            x = network.norm(hidden, norm)
            scores = logits(self.card.decoder, x, head)
            _check(scores, network.head_role)
            p = scores.detach().softmax(dim=1)
            drawn = torch.multinomial(p, 1, generator=generator)
            surprise = -scores.log_softmax(dim=1).gather(1, drawn).sum()
            (out[first : first + _LOGITS],) = torch.autograd.grad(surprise, hidden)
            found.add(x.detach(), p * (1 - p))
        found.write(self.folder, network.head_role)
        return gradient

    def _backwards(self, network: Network, layer: Layer, states: Tensor, gradient: Tensor) -> Tensor:
        """Record the linears of a layer, and return the gradient of what enters it."""
        sums: dict[str, _Sums] = {}
        before = torch.empty_like(gradient)
        for part in self._batches():
            hidden = states[part].clone().requires_grad_(True)
            record = _Record()
            outputs = network.forward(layer, hidden, record)
            gradients = torch.autograd.grad(outputs, [hidden, *(y for _, _, y in record.linears)], gradient[part])
            before[part] = gradients[0]
            for (role, x, y), g in zip(record.linears, gradients[1:], strict=True):
                sums.setdefault(role, _Sums(y.shape[1], x.shape[1])).add(x, g.square())
        for role, found in sums.items():
            found.write(self.folder, role)
        return before

    def _embedding(self, network: Network, gradient: Tensor) -> None:
        """Record the embedding by how often tokens are looked up."""
        rows = self.card.decoder.vocabulary
        g = gradient.reshape(-1, gradient.shape[-1]) * self.card.decoder.embedding_scale
        counts = torch.bincount(self.windows.reshape(-1), minlength=rows)[:rows] / self.windows.numel()
        shares = ((1 - _UNSEEN) * counts + _UNSEEN / rows).float()
        hessian = g.T @ g / len(g)
        names = ("rows_hessian", "rows_shares") if self.card.tied_head else ("hessian", "shares")
        for name, values in zip(names, (hessian, shares), strict=True):
            _save(self.folder, "embed", name, values)
        if not self.card.tied_head:
            _save(self.folder, "embed", "moments", hessian.diagonal())


class _States:
    """Keep what enters each layer, [B, L, hidden], on disk: pages of mapped files would count as memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, layer: int, hidden: Tensor) -> None:
        """Keep the states that enter a layer."""
        np.save(self._folder / f"{layer}.npy", hidden.numpy())

    def of(self, layer: int) -> Tensor:
        """Return the states that enter a layer, and remove their file."""
        path = self._folder / f"{layer}.npy"
        hidden = torch.from_numpy(np.load(path))
        path.unlink()
        return hidden


class _Record:
    """Record each linear's role, input and output."""

    def __init__(self) -> None:
        self.linears: list[tuple[str, Tensor, Tensor]] = []

    def __call__(self, role: str, x: Tensor, y: Tensor) -> None:
        self.linears.append((role, x.detach(), y))


class _Sums:
    """Sums over tokens of one linear."""

    def __init__(self, rows: int, columns: int) -> None:
        self._hessian, self._moments = torch.zeros(columns, columns), torch.zeros(columns)
        self._rows, self._tokens = torch.zeros(rows, dtype=torch.float64), 0

    def add(self, x: Tensor, squares: Tensor) -> None:
        """Add inputs [T, in] with the squares of gradients [T, out]."""
        weight = squares.sum(dim=1)
        self._hessian.addmm_(x.T, x * weight[:, None])
        self._moments += x.square().sum(dim=0)
        self._rows += squares.sum(dim=0)
        self._tokens += len(x)

    def write(self, folder: Path, role: str) -> None:
        """Keep the means. Raises ``BadFile`` for what is not finite."""
        shares = self._rows / self._rows.sum().clamp_min(1e-300)
        hessian = (self._hessian + self._hessian.T) / (2 * self._tokens)
        for name, values in (("hessian", hessian), ("shares", shares), ("moments", self._moments / self._tokens)):
            _save(folder, role, name, values)


def _save(folder: Path, role: str, name: str, values: Tensor) -> None:
    _check(values, role)
    np.save(folder / f"{role}.{name}.npy", values.float().numpy())


def _check(values: Tensor, role: str) -> None:
    """Raise ``BadFile`` for what is not finite."""
    if not bool(torch.isfinite(values).all()):
        raise BadFile(
            f"The statistics of {role} hold NaN or Inf: the model computes no numbers on this text.",
            ["a damaged file does that, or activations beyond float32"],
            ["rung check MODEL", "--text FILE with another text"],
        )
