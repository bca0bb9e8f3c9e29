"""Choose formats for a model of transformers within a KL or a size, and round its weights for the text.

The search is that of ``rung quantize``: the model is read from its files by rung's own decoder before transformers
loads it.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rung import formats
from rung.core.errors import RungError, UsageError
from rung.core.text import did_you_mean, matches, parse_size
from rung.core.types import Format
from rung.formats import Encoded
from rung.kernels.cpu import target
from rung.models.open import open_card
from rung.nn.quantize import kind_of
from rung.nn.quantized.weight import encode

if TYPE_CHECKING:
    from rung.models.card import ModelCard

#: The module that searches; what it is made of stands above this package.
SEARCH = "rung.conversion.within_budget"
#: Encode a weight [rows, columns] in a format; the name is that of its parameter.
Rounding = Callable[[Tensor, Format, str], Encoded]


def check_budget(format: str | None, max_kl: float | None, size: int | str | None, text: str | None) -> int | None:
    """Return the bytes of ``size``. Raises ``UsageError`` for a budget that makes no sense."""
    if sum(each is not None for each in (format, max_kl, size)) != 1 or (max_kl is None and size is None):
        arguments = {"format": format, "max_kl": max_kl, "size": size, "text": text}
        raise UsageError(
            "A format, max_kl or size: one of the three says how good or how small the model must be.",
            ["given: " + ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value is not None)],
            ["rung.QuantizationConfig(max_kl=0.02)", 'rung.QuantizationConfig(size="120MB")'],
            code="options-exclude-each-other",
        )
    if max_kl is not None and not (isinstance(max_kl, int | float) and 0 < max_kl < float("inf")):
        raise UsageError(f"max_kl={max_kl!r} is no KL.", (), ["max_kl=0.02"], code="value-out-of-range")
    try:
        return None if size is None else parse_size(str(size))
    except ValueError as error:
        raise UsageError(f"size={size!r}: {error}", (), ['size="120MB"'], code="value-out-of-range") from error


def answers_numbers(model: Any, files: Iterable[str]) -> bool:
    """Return whether a model answers with numbers and no KL of tokens tells its error: one that generates nothing, and
    is no body of a language model that rung's decoder builds."""
    generates = getattr(model, "can_generate", None)
    first = next(iter(files), None)
    if first is None or generates is None or generates():
        return False
    try:
        return not hasattr(open_card(Path(first).parent), "decoder")
    except RungError:
        return True


def choose(model: Any, config: Any, files: Iterable[str]) -> Rounding:
    """Put the mixture that a budget allows into the config, and return a function that rounds weights for the text.

    Raises ``UsageError`` for a budget that no mixture meets and for models without files; what ``open_card`` raises
    for those that rung's decoder does not build.
    """
    search: Any = importlib.import_module(SEARCH)
    card = open_card(_folder(files))
    budget = search.Budget(check_budget(None, config.max_kl, config.size, config.text), config.max_kl)
    threads = torch.get_num_threads()
    target.configure()
    text = None if config.text is None else Path(config.text)
    fixed = _fixed(card, config)
    with plain_torch():
        found = search.Calibration(card, text, threads, lambda label, done, total: None)
        try:
            job, choice = search.budgeted(found, budget, fixed, "rung")
        except UsageError as error:
            raise UsageError(error.cause, error.facts, map(as_argument, error.ways_out), code=error.code) from error
    settings = json.loads(job.small["config.json"])["quantization_config"]
    names = [name for name, layer in model.named_modules(remove_duplicate=False) if kind_of(layer)]
    layers = _LayerNames(names, model.base_model_prefix)
    config.format, config.embeddings = settings["format"], None
    config.keep = {name: fmt for known, fmt in settings.get("keep", {}).items() if (name := layers.of(known))}
    config.skip = list(dict.fromkeys([*config.skip, *filter(None, map(layers.of, settings["skip"]))]))
    config.max_kl = config.size = config.text = None
    config.expected_kl = choice.divergence
    return _rounding(found.rounder, job, layers)


class _LayerNames:
    """Find the layers of a model by the names that its files have for them: a body alone lacks their prefix."""

    def __init__(self, names: Sequence[str], prefix: str) -> None:
        self._names, self._prefix = frozenset(names), f"{prefix}."

    def of(self, name: str) -> str:
        """Return the name of a layer in the model; nothing where it has none."""
        return next((each for each in (name, name.removeprefix(self._prefix)) if each in self._names), "")


def as_argument(way: str) -> str:
    """Return a way out of ``rung quantize`` as one in Python."""
    for option, argument in (("--max-kl ", "max_kl="), ("--size ", "size=")):
        way = argument + way.removeprefix(option) if way.startswith(option) else way
    return way


def _folder(files: Iterable[str]) -> Path:
    """Return the folder of a model's files. Raises ``UsageError`` where there are none, and for a GGUF file."""
    first = next(iter(files), None)
    if first is None or Path(first).suffix == ".gguf":
        what = "a GGUF file" if first else "weights from the caller's memory"
        raise UsageError(
            f"max_kl and size judge a model by the files of its folder; these are {what}.",
            (),
            ["from_pretrained(FOLDER)", "rung quantize FILE.gguf OUT.gguf --max-kl 0.02"],
            code="format-does-not-suit",
        )
    return Path(first).parent


def _fixed(card: ModelCard, config: Any) -> dict[str, Format]:
    """Return the formats that the config settles, by patterns: what is skipped keeps that of its file.

    Raises ``UsageError`` for a pattern that matches nothing.
    """
    plain = {tensor.name.removesuffix(".weight"): formats.get(tensor.format) for tensor in card.tensors}
    for pattern in config.skip:
        if not any(matches(name, pattern) for name in plain):
            raise UsageError(
                f"skip: {pattern!r} matches no layer.{did_you_mean(pattern, plain)}",
                (),
                ["write a name, whole parts of one, or a pattern with * and ?"],
                code="name-unknown",
            )
    skipped = {name: fmt for name, fmt in plain.items() if any(matches(name, pattern) for pattern in config.skip)}
    outer = {} if config.embeddings is None else dict.fromkeys(("embed", "head"), formats.get(config.embeddings))
    if card.decoder.tied_head:
        outer.pop("head", None)
    return skipped | {pattern: formats.get(name) for pattern, name in config.keep.items()} | outer


def _rounding(rounder: Any, job: Any, layers: _LayerNames) -> Rounding:
    """Return a function that rounds the weights of the job's model for its text, others plainly."""
    found: Mapping[str, str] = {
        f"{layers.of(step.name.removesuffix('.weight'))}.weight": step.tensor.role for step in job.steps
    }
    roles = dict(found)
    if job.card.decoder.tied_head:
        roles["lm_head.weight"] = "embed"

    def rounded(values: Tensor, fmt: Format, name: str) -> Encoded:
        role = roles.get(name)
        if role is None or not rounder.takes(role, fmt):
            return encode(values, fmt, name)
        weights = np.ascontiguousarray(values.detach().to("cpu", torch.float32).numpy())
        raw = Encoded(formats.get("f32"), (values.shape[0], values.shape[1]), {"data": weights.view(np.uint8)})
        with plain_torch():
            found: Encoded = rounder.encode(role, raw, fmt, name)
            return found

    return rounded


@contextmanager
def plain_torch() -> Iterator[None]:
    """Compute on the processor, in f32 and with gradients, whatever transformers has set for its empty models."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
