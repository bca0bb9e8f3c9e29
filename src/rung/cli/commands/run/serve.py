"""``rung serve [MODEL...]``: language models over HTTP, for clients of OpenAI and others."""

from __future__ import annotations

import os
import re
import sys
import threading
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import options
from rung.cli.views.output import note
from rung.core.errors import RungError, SoftwareMissing, UsageError

if TYPE_CHECKING:
    from rung.server.protocol import Load

#: What the HTTP process is made of, and what holds answers to forms in that of a model.
_PACKAGES = ("starlette", "uvicorn", "msgspec", "llguidance")


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="GGUF files, Hugging Face folders, demo, or hub names: ORG/REPO, ORG/REPO:Q4_K_M.",
            show_default=False,
        ),
    ] = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8080,
    key: options.Keys = None,
    no_key: options.NoKey = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Another name that clients call this server by.", show_default=False),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            help="Pages of this origin may call: https://example.org; localhost: of this machine.",
            show_default=False,
        ),
    ] = None,
    allow_pull: Annotated[
        bool, typer.Option("--allow-pull", help="Clients may pull models into the store and delete them there.")
    ] = False,
    tls_cert: Annotated[
        str | None,
        typer.Option("--tls-cert", metavar="FILE", help="Speak HTTPS with this certificate (PEM).", show_default=False),
    ] = None,
    tls_key: Annotated[
        str | None,
        typer.Option("--tls-key", metavar="FILE", help="Private key of the certificate (PEM).", show_default=False),
    ] = None,
    keep_alive: Annotated[
        str | None,
        typer.Option(
            "--keep-alive",
            metavar="TIME",
            help="Unload a model so long after its last answer: 5m, 0, -1 for never. 5m for models that requests name.",
            show_default=False,
        ),
    ] = None,
    alias: Annotated[
        str | None, typer.Option("--alias", help="Name that clients call the model by.", show_default=False)
    ] = None,
    any_name: Annotated[
        bool,
        typer.Option("--any-name", help="Answer requests that name an unknown model with the first one."),
    ] = False,
    system: Annotated[
        str | None,
        typer.Option("--system", help="System prompt of conversations that have none.", show_default=False),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            "--chat-template",
            metavar="FILE",
            help="Read conversations by this template (Jinja), not by the model's.",
            show_default=False,
        ),
    ] = None,
    reasoning: Annotated[
        bool | None,
        typer.Option(
            "--reasoning/--no-reasoning",
            help="Have models think first, or not, where a request does not say; else their templates decide.",
            show_default=False,
        ),
    ] = None,
    open: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser, where there is a screen, when it can be used.")
    ] = False,
    format: options.Format = None,
    device: options.Device = None,
    software: options.Software = None,
    memory: options.Memory = None,
    context: options.Context = None,
    parallel: options.Parallel = None,
    adapter: options.Adapter = None,
    draft: options.Draft = None,
    prefix_cache: options.PrefixCache = None,
    slot_save_path: Annotated[
        str | None,
        typer.Option(
            "--slot-save-path",
            metavar="DIR[:SIZE]",
            help="Clients may save slots in a folder of up to 4GB, or SIZE, and restore them.",
            show_default=False,
        ),
    ] = None,
    cache_type: options.CacheType = None,
    max_kl: options.MaxKl = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but a key that was made.")] = False,
    yes: options.Yes = False,
) -> None:
    """Serve language models over HTTP, as OpenAI's clients expect them.

    Without MODEL the starter smollm2, or the embedded demo where that is not pulled. Requests may name any other model
    that is pulled: it is loaded then, and others are unloaded where the memory is too small for all.
    """
    _check_packages()
    from rung.cli import interrupts
    from rung.cli.common import check_software
    from rung.cli.views.output import bar
    from rung.server import serve as server

    check_software(device, software)
    common = {
        "format": format, "device": device, "software": software, "memory": memory, "context": context,
        "parallel": parallel, "prefix_cache": prefix_cache, "cache_type": cache_type, "threads": threads,
        "offline": offline, "max_kl": max_kl,
    }  # fmt: skip
    special = {"adapters": tuple(adapter or ()), "draft": draft, "revision": revision}
    template = _read_template(chat_template)
    more = {"system": system or "", "slots": slot_save_path or "", "template": template, "thinks": reasoning}
    settings = server.Settings(
        _loads(models or [], alias, common, special, more, yes, quiet),
        options=common,
        memory=memory,
        keep_alive=None if keep_alive is None else _seconds(keep_alive),
        host=host,
        port=port,
        keys=tuple(key or ()),
        no_key=no_key,
        allow_hosts=tuple(allow_host or ()),
        origins=tuple(origin or ()),
        tls_cert=tls_cert,
        tls_key=tls_key,
        allow_pull=allow_pull,
        saves_slots=bool(slot_save_path),
        any_name=any_name,
    )
    on_page = open_page if open else lambda address: None
    interrupts.keep_running()
    with _ways_of_serve(), bar(quiet) as progress:
        server.serve(settings, lambda text: None if quiet else note(text), progress.update, note, on_page)


@contextmanager
def _ways_of_serve() -> Iterator[None]:
    """Have the ways out of errors in the block serve a model where they run one."""
    try:
        yield
    except RungError as error:
        error.ways_out = tuple(re.sub("^rung run ", "rung serve ", way) for way in error.ways_out)
        raise


def _check_packages() -> None:
    """Raise ``SoftwareMissing`` where a package that serving needs is not installed."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise SoftwareMissing(f"{missing[0]} is not installed; serving needs it.", (), ["pip install 'rung[serve]'"])


def open_page(address: str) -> None:
    """Open a browser, where there is a screen, without waiting for it."""
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _loads(
    models: Sequence[str],
    alias: str | None,
    common: Mapping[str, Any],
    special: Mapping[str, Any],
    more: Mapping[str, Any],
    yes: bool,
    quiet: bool,
) -> dict[str, Load]:
    """Return how to load the models of the command line, by name; ``more`` are fields of ``Load``. Raises
    ``UsageError`` for ``alias``, ``special`` options and a chat template, which are of one model, with several."""
    from rung.cli import fetching
    from rung.engine.scheduling.prefix_files import open_folder
    from rung.server.protocol import Load

    if len(set(models)) > 1 and (alias or more["template"] or any(special.values())):
        names = "--alias, --adapter, --chat-template, --draft and --revision"
        raise UsageError(f"{names} are of one model, and several are to be served.")
    if more["slots"]:
        open_folder(more["slots"], "--slot-save-path")  # says at once where it is none
    loads = {}
    for model in models or (None,):
        path, starter = fetching.model_to_run(model, yes, common["offline"], quiet)
        loads[alias or starter or model or path] = Load(path, {**common, **special}, **more)
    return loads


def _read_template(file: Path | None) -> str:
    """Return a chat template, empty where there is none. Raises ``UsageError`` for a file that cannot be read."""
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)
        raise UsageError(f"--chat-template {file} cannot be read: {reason}.", code="file-unreadable") from error


def _seconds(keep_alive: str) -> float:
    """Return the seconds of ``--keep-alive``. Raises ``UsageError``."""
    from rung.server.model_pool import parse_keep_alive

    try:
        return parse_keep_alive(keep_alive)
    except ValueError as error:
        raise UsageError(
            f"--keep-alive {keep_alive} is no time.", (), ["--keep-alive 5m", "--keep-alive -1   # for ever"]
        ) from error
