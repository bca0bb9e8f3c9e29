"""The runs behind ``rung compare``: one format after the other, so that one is in memory at a time."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rung.core.errors import RungError, UsageError
from rung.core.files import read_text, writing
from rung.models.card import ModelCard
from rung.models.networks.pipeline import INDEX

if TYPE_CHECKING:
    from rung.engine.model import Model
    from rung.hub.diffusers.pipelines import Folder

Rows = list[dict[str, Any]]
#: Tokens that are written for the speed of writing.
_WRITTEN = 32


def is_pipeline(model: str, offline: bool) -> bool:
    """Return whether it is a pipeline of diffusers, here or on the hub, which is not asked ``offline``."""
    from rung.models.lookup import find_outline

    path = Path(model).expanduser()
    if path.exists():
        return (path / INDEX).is_file() or path.name == INDEX
    return model.count("/") == 1 and find_outline(model, offline=offline).kind == "pipeline"


def pipelines(
    folder: Folder, formats: Sequence[str], against: str, settings: dict[str, Any], device: str | None,
    memory: str | None, picture: Path | None,
) -> Rows:  # fmt: skip
    """A row a format, the reference first; frames of the same noise."""
    from rung.cli.making import device_named
    from rung.measure import metrics, pictures
    from rung.pipelines.generate import Pipeline, Settings

    if picture is not None:
        pictures.check_destination(picture, 1)
    chosen = device_named(device)
    rows: Rows = []
    results = {}
    for name in dict.fromkeys((against, *formats)):
        if not rows:  # what is imported, compiled and read from the disk for the first time is no format's
            list(Pipeline(folder, chosen, memory=memory, format=name).make([Settings(**{**settings, "steps": 1})]))
        (output,) = Pipeline(folder, chosen, memory=memory, format=name).make([Settings(**settings)])
        results[name] = output.frames
        rows.append(
            {
                "format": name,
                "memory": output.plan.most,
                "seconds": round(output.seconds, 2),
                "PSNR dB": metrics.psnr(output.frames, results[against]),
                "SSIM": metrics.ssim(output.frames, results[against]),
            }
        )
    if picture is not None:
        pictures.sheet(picture, results)
    return rows


def language(
    model: str, formats: Sequence[str], against: str, text: Path | None, context: int, load: dict[str, Any],
    picture: Path | None, fleet: bool = False,
) -> Rows:  # fmt: skip
    """A row a format, the reference first. With ``fleet`` the nodes of this machine's fleet measure, a format each at a
    time, and rows say which one did. Raises ``RungError``."""
    from rung.measure import compare
    from rung.measure.curves import check_curves, curves

    words = compare.TEXT if text is None else read_text(text)
    if picture is not None:
        check_curves(picture)
    names = list(dict.fromkeys((against, *formats)))
    if fleet:
        found = _of_fleet(model, names, words, context, load)
    else:
        here = Comparison(model, against, words, context, load)
        found = [here.measured(name) for name in names]
    if picture is not None:
        shown = {name: list(each.errors.items()) for name, each in zip(names, found, strict=True) if name != against}
        with writing(picture):
            curves(picture, shown, f"{Path(model).name}: weights against {against}", "layer", "SQNR, dB")
    return [each.row for each in found]


class Measured(NamedTuple):
    """A row of the table, and the SQNR in dB of the weights of each layer."""

    row: dict[str, Any]
    errors: dict[int, float]


class Comparison:
    """Measure formats of a model in one process, against a reference that is measured there first.

    The reference's logits stay in a temporary folder until this ends. ``files`` and ``source`` are those of
    ``fleet.weights.fetch``, where the model is fetched from another machine.
    """

    def __init__(
        self, model: str, against: str, words: str, context: int, load: dict[str, Any], files: Sequence[Any] = (),
        source: Any = None,
    ) -> None:  # fmt: skip
        self._model, self._against, self._words, self._context, self._load = model, against, words, context, load
        self._files, self._source = files, source
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._first: Measured | None = None

    def measured(self, format: str) -> Measured:
        """Return the measurements of a format. Raises ``RungError``."""
        if self._first is None or self._folder is None:
            if self._files:
                from rung.fleet import weights

                self._model = str(asyncio.run(weights.fetch(self._files, self._source)))
            self._folder = tempfile.TemporaryDirectory(prefix="rung-compare-")
            self._first = self._measured(self._against, Path(self._folder.name), first=True)
        if format == self._against:
            return self._first
        return self._measured(format, Path(self._folder.name), first=False)

    def __call__(self, row: tuple[int, str]) -> str:
        """Return the measurements of a numbered format, or its ``RungError``, as JSON."""
        try:
            return json.dumps(self.measured(row[1]), default=float)
        except RungError as error:
            return json.dumps(error.to_json())

    def _measured(self, format: str, folder: Path, *, first: bool) -> Measured:
        from rung.engine.load import load as load_model
        from rung.measure import compare

        loaded = load_model(self._model, format=format, context=self._context, **self._load)
        ids = loaded.tokenizer.encode(self._words, special=True, bos=True)
        pieces = list(compare.windows(ids, self._context))
        if not pieces:
            raise UsageError("The text is too short to compare: it needs two tokens.", code="input-empty")
        begin = _begin(loaded, self._words, self._context)
        _warm_up(loaded, pieces[0], begin)
        reference = compare.Reference(folder)
        sums, seconds = compare.Sums(reference), 0.0
        for number, piece in enumerate(pieces):
            started = time.perf_counter()
            logits = np.asarray(loaded.logits(piece), np.float32)
            seconds += time.perf_counter() - started
            if first:
                reference.keep(number, logits)
            sums.add(number, piece, logits)
        reading = sums.reading()
        answer = loaded.generate(begin, raw=True, max_tokens=_WRITTEN, temperature=0.0)
        for _ in answer:
            pass
        card = loaded.card  # the tensors of a network of transformers have no roles
        errors = compare.layer_errors(card, format, loaded.devices[0]) if isinstance(card, ModelCard) else {}
        row = {
            "format": format,
            "weights": sum(placement.memory.weights for placement in loaded.plan.placements),
            "KL": reading.divergence,
            "perplexity": reading.perplexity,
            "agreement": reading.agreement,
            "worst layer dB": min(filter(math.isfinite, errors.values()), default=math.inf if errors else math.nan),
            "tokens/s": float(answer.result["decode_tokens_per_second"] or math.nan),
            "prompt/s": sum(map(len, pieces)) / seconds if seconds else math.nan,
        }
        return Measured(row, errors)


def _of_fleet(
    model: str, names: Sequence[str], words: str, context: int, load: dict[str, Any]
) -> list[Measured]:  # fmt: skip
    """Have the nodes of this machine's fleet measure formats, the first of which is the reference; the model goes
    to nodes that lack them. Raises ``RungError``."""
    from rung.cli.views.output import note
    from rung.fleet import ray_node, weights
    from rung.models.lookup import find_path

    ray_node.require()
    files = weights.files_of(find_path(model, offline=load["offline"]))
    found = list[Measured]()
    with ray_node.connected():
        from rung.fleet.work.pieces import Rows, source_of

        there = Comparison(model, names[0], words, context, {**load, "offline": True}, files, source_of(files))
        nodes = Rows(there, note, rows=1, each=1)
        for number, text in enumerate(nodes(iter(enumerate(names)))):
            answered = json.loads(text)
            if isinstance(answered, dict):
                facts, ways_out = answered["facts"], answered["ways_out"]
                raise RungError(answered["error"], facts, ways_out, code=answered["code"])
            row, errors = answered
            found.append(Measured({**row, "node": nodes.names[number]}, {int(n): value for n, value in errors.items()}))
    return found


def _warm_up(loaded: Model, piece: Sequence[int], begin: str) -> None:
    """Read and write a little: what is imported, compiled and allocated for the first time is no format's speed."""
    loaded.logits(piece)
    for _ in loaded.generate(begin, raw=True, max_tokens=2, temperature=0.0):
        pass


def _begin(loaded: Model, words: str, context: int) -> str:
    """Return the begin of a text that is continued: at most half of the context, which some tokenizers need for a few
    words."""
    begin = words[:200]
    while len(begin) > 1 and len(loaded.tokenizer.encode(begin, special=True, bos=True)) > context // 2:
        begin = begin[: len(begin) // 2]
    return begin
