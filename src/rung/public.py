"""The functions behind the public names of ``rung``; nothing heavy is imported until one is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rung.core.types import Device, Plan
    from rung.engine.model import Model
    from rung.models.card import ModelCard
    from rung.models.cards.folder import NetworkCard
    from rung.planning.check_result import Answer

Budget = str | int | Mapping[str, str | int]


def devices() -> tuple[Device, ...]:
    """The devices of this machine with what earlier probes proved; never imports torch."""
    from rung.hardware import detect

    return detect.devices()


def device(name: str, software: str | None = None, memory: str | int | None = None) -> Device:
    """A device that need not be here, as the catalog knows it: ``rung.device("p2200", software="torch 1.10+cu102")``.

    ``name`` is a product, a cloud instance or a TOML file that describes a card; ``software`` names releases, by
    default the newest torch that still carries the card's code; ``memory`` replaces the card's. Never imports torch.
    Raises ``UnknownDevice``, ``UsageError``, ``BadFile``; see ``rung.hardware.catalog.device``.
    """
    from rung.hardware import catalog

    return catalog.device(name, software, memory)


def card(path: str | PathLike[str]) -> ModelCard:
    """Describe a model from headers alone: a GGUF file, a folder, ``demo`` or a hub name.

    Raises ``ModelNotFound``, ``BadFile``, ``UnknownArchitecture``, ``HubError``.
    """
    from rung.models.lookup import find_card

    return find_card(str(path))


def check(
    model: str | PathLike[str] | None = None,
    devices: str | Device | Sequence[str | Device] = (),
    *,
    device: str | Device | Sequence[str | Device] | None = None,
    format: str | Sequence[str] | None = None,
    software: str | None = None,
    memory: Budget | None = None,
    fits: bool = False,
    offline: bool = False,
    revision: str | None = None,
    trace: bool = False,
    **options: Any,
) -> Answer:
    """Return whether a model will run, where, in which format, how large and how fast, from its headers alone; no
    torch.

    ``devices``, or ``device`` as in ``load`` and ``plan``, are names (``p2200``, ``3090+3060``, ``2x3090``, ``cpu``) or
    devices, one or several, by default those of this machine; ``format`` is a format or several;
    ``fits`` asks the whole catalog; ``trace`` builds the modules of a configuration without weights, with torch, and
    counts a forward pass. ``options`` are the fields of ``rung.planning.check_result.Question``: ``context batch
    formats training optimizer rank sequence prompt_tokens cache_type``. Raises what ``card`` raises, ``UnknownDevice``,
    ``UnknownFormat``, ``ContextTooLong``, ``UsageError``; with ``trace`` also ``CannotTrace`` and ``SoftwareMissing``.
    """
    from rung.core.errors import UsageError
    from rung.engine.checking import check_model

    if model is None:
        raise UsageError(
            "Which model? rung.check answers for one, by its name, file or folder.",
            (),
            ['rung.check("llama 3.1 8b", device="p2200")', "rung check   # in a shell: what runs on this machine"],
            code="input-empty",
        )
    return check_model(
        str(model),
        devices,
        device=device,
        format=format,
        software=software,
        memory=memory,
        fits=fits,
        offline=offline,
        revision=revision,
        trace=trace,
        **options,
    )


def plan(
    card_or_path: ModelCard | NetworkCard | str | PathLike[str],
    devices: Sequence[Device] | None = None,
    *,
    format: str | None = None,
    device: str | None = None,
    memory: Budget | None = None,
    context: int | None = None,
    parallel: int | None = None,
    threads: int | None = None,
    cache_type: str | None = None,
) -> Plan:
    """The plan for a model, by default on the devices of this machine.

    ``memory`` is a budget in bytes, a text like ``4.6GB``, or one of these by device id. ``parallel`` sequences have
    room for the whole ``context``, by default one. ``cache_type`` is what keys and values are stored in: f32, f16,
    q8_0, q5_1, q4_0, by default what fits. Raises ``DoesNotFit`` with the smallest relaxations, ``UnknownFormat``,
    ``UnknownDevice``, ``ContextTooLong``.
    """
    from rung.engine.open_model import open_named
    from rung.engine.planning import make_plan

    named = None
    if isinstance(card_or_path, str | PathLike):
        found, named = open_named(str(card_or_path))
    else:
        found = card_or_path
    return make_plan(
        found,
        format=format or named,
        device=device,
        memory=memory,
        context=context,
        parallel=parallel,
        threads=threads,
        devices=devices,
        catalog=True,
        cache_type=cache_type,
    )[0]


def load(
    path_or_name: str | PathLike[str],
    format: str | None = None,
    device: str | None = None,
    memory: Budget | None = None,
    context: int | None = None,
    *,
    parallel: int | None = None,
    threads: int | None = None,
    offline: bool = False,
    revision: str | None = None,
    adapters: Sequence[str | PathLike[str]] = (),
    draft: str | PathLike[str] | None = None,
    prefix_cache: str | PathLike[str] | None = None,
    cache_type: str | None = None,
    max_kl: float | None = None,
) -> Model:
    """A language model, planned for this machine, read and bound, which answers: ``generate``, ``chat`` and others.

    ``context`` is the limit of one sequence, and ``parallel`` the most at once, each with room for it; by default up to
    16 share the room of one.
    ``adapters`` (PEFT folders, GGUF files; ``DIR:0.5`` for half the weight) are added while it runs, unmerged.
    ``draft`` is a smaller model of the same vocabulary that guesses tokens, without changing any. ``prefix_cache``
    (``DIR`` or ``DIR:SIZE``) is a folder that keeps what prompts computed for later runs. ``cache_type``
    is what keys and values are stored in: f32, f16, q8_0, q5_1, q4_0, by default what fits. ``max_kl``: the
    cache and the inputs of weights of the least memory within that KL, in nats a token, which the report tells.
    Raises ``SoftwareMissing`` without torch and numba, and whatever ``card`` and ``plan`` raise.
    """
    from rung.core.shield import import_whole

    options: dict[str, Any] = {
        "format": format, "device": device, "memory": memory, "context": context, "parallel": parallel,
        "threads": threads, "offline": offline, "revision": revision, "adapters": [str(each) for each in adapters],
        "draft": None if draft is None else str(draft), "cache_type": cache_type,
        "prefix_cache": None if prefix_cache is None else str(prefix_cache),
    }  # fmt: skip
    if max_kl is not None:
        options |= import_whole("rung.quantization").choose_within(str(path_or_name), max_kl, options).changes
    model: Model = import_whole("rung.engine.load").load(str(path_or_name), **options)
    return model
