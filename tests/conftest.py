"""Fixtures of every test: a cache that outlives the session, so that kernels compile and probes run once a version."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from rung.kernels.cpu import target

# Read when torch is first imported: threads that spin while they wait cost ten times as much on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Tables obey it, and workers of pytest-xdist have it set.
os.environ.pop("COLUMNS", None)
# What a shell starts in the background ignores Ctrl-C, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Before several processes begin, what they have in common is compiled and proved once."""
    config = session.config
    if not getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput") or config.option.collectonly:
        return
    from tests import proving

    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("RUNG_CACHE"):
            patch.setenv("RUNG_CACHE", str(config.cache.mkdir("rung")))
        proving.prove()


@pytest.fixture(scope="session", autouse=True)
def _cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """``RUNG_CACHE`` in pytest's own cache, unless the environment names a folder; ``--cache-clear`` empties it."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("RUNG_CACHE"):
            patch.setenv("RUNG_CACHE", str(pytestconfig.cache.mkdir("rung")))
        patch.setenv("RUNG_MODELS", str(tmp_path_factory.mktemp("models")))  # whatever a person has pulled
        target.configure()  # before a test with a cache of its own imports Numba
        yield


class _Log(logging.Handler):
    """Keeps the records of a test. pytest's own plugin adds and removes two handlers for each of torch's 44 loggers,
    three times a test: half of what a small test costs."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)


_LOG = _Log()


def pytest_configure(config: pytest.Config) -> None:
    """Record what is logged, to the end of the session."""
    logging.getLogger().addHandler(_LOG)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the test has logged."""
    report = yield
    if report.failed and _LOG.records:
        report.sections.append(("Captured log", "\n".join(map(logging.Formatter().format, _LOG.records))))
    return report


@pytest.fixture
def logged() -> list[logging.LogRecord]:
    """Return the records of the test so far, which grow: warnings and above, of loggers that propagate."""
    return _LOG.records


_BEFORE, _THREADS = pytest.StashKey[dict[str, Any]](), pytest.StashKey[int]()
_IMPORTED = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Import all test modules without collections of garbage, which would walk what is imported again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def _keep_imported(config: pytest.Config) -> None:
    """Modules stay to the end: without this each full collection, and rung asks for many, walks a million objects."""
    if len(sys.modules) > config.stash.get(_IMPORTED, 0):
        gc.collect()
        gc.freeze()
        config.stash[_IMPORTED] = len(sys.modules)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Libraries look for leaks at the end."""
    gc.unfreeze()
    logging.getLogger().removeHandler(_LOG)


def _torch_wide() -> dict[str, Any]:
    """Return the settings that a program can change for all of torch, where it is imported."""
    torch = sys.modules.get("torch")
    names = ("get_default_dtype", "is_grad_enabled")
    found = {name: getattr(torch, name)() for name in names if hasattr(torch, name)}
    return found | {"default_device": torch.empty(0).device} if hasattr(torch, "empty") else found


@functools.cache
def _has_gpu() -> bool:
    """Return whether torch, which has been imported, has a GPU that a test may draw on."""
    torch = sys.modules["torch"]
    return bool(torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed torch, so that its draws do not depend on the tests that this process has run before.

    Where there is no GPU, ``torch.manual_seed`` would format the stack for each kind of them and keep it.
    """
    _LOG.records.clear()
    torch = sys.modules.get("torch")
    if hasattr(torch, "manual_seed"):
        (torch.manual_seed if _has_gpu() else torch.default_generator.manual_seed)(0)
        item.stash[_THREADS] = torch.get_num_threads()
    item.stash[_BEFORE] = _torch_wide()
    _keep_imported(item.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """A test that leaves torch changed is named and its change undone: the tests after it would meet it."""
    yield
    if _THREADS in item.stash:  # training and borrowed networks set it for their process
        sys.modules["torch"].set_num_threads(item.stash[_THREADS])
    before, after = item.stash.get(_BEFORE, {}), _torch_wide()
    if before and before != after:
        import torch

        item.warn(pytest.PytestWarning(f"left torch with {after} instead of {before}"))
        torch.set_default_device(None)
        torch.set_default_dtype(before["get_default_dtype"])
        torch.set_grad_enabled(before["is_grad_enabled"])
