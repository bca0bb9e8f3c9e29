"""A plugin of pytest: tests for cards that nobody here owns.

``@pytest.mark.rung_device("v100", ...)`` runs a test once on each of these simulated cards; the fixture ``rung_device``
is the ``Device`` there; ``memory=``, ``software=`` and ``defects=`` of the mark are those of ``rung.simulate``.
``--rung-devices all`` runs such tests once on every card of the catalog, ``--rung-devices nvidia`` on every card of
that vendor, ``--rung-devices p2200,mi210`` on those named. Nothing outside such tests changes, and torch is imported
by the first of them that runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rung.core.types import Device

_FIXTURE = "rung_device"
_VENDORS = ("nvidia", "amd", "apple", "intel")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option ``--rung-devices``."""
    parser.getgroup("rung").addoption(
        "--rung-devices",
        metavar="NAMES",
        default="",
        help="simulate these cards in tests marked rung_device: names or vendors (nvidia, amd, apple, intel) with "
        "commas between them, or all",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The mark ``rung_device``."""
    config.addinivalue_line("markers", "rung_device(name, ...): run on these simulated cards (rung devices NAME)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each card."""
    mark = metafunc.definition.get_closest_marker(_FIXTURE)
    if mark is None and _FIXTURE not in metafunc.fixturenames:
        return
    names = _requested_cards(metafunc.config) or (list(mark.args) if mark else [])
    if _FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(_FIXTURE)
    metafunc.parametrize(_FIXTURE, names, indirect=True, scope="function")


@pytest.fixture
def rung_device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The simulated card that the test runs on. Without a mark or ``--rung-devices`` the test is skipped."""
    from rung.simulation.context import simulate

    mark = request.node.get_closest_marker(_FIXTURE)
    if not hasattr(request, "param"):  # methods of unittest.TestCase run once, whatever their marks
        names = _requested_cards(request.config) or (list(mark.args) if mark else [])
        if len(names) != 1:
            pytest.skip(f"a method of unittest.TestCase runs on one card, and {len(names)} are named")
        request.param = names[0]
    with simulate(request.param, **(mark.kwargs if mark else {})) as device:
        yield device


@pytest.fixture(autouse=True)
def _rung_device_of_mark(request: pytest.FixtureRequest) -> None:
    """A mark alone is enough: the test need not take the fixture."""
    if request.node.get_closest_marker(_FIXTURE):
        request.getfixturevalue(_FIXTURE)


def _requested_cards(config: pytest.Config) -> list[str]:
    """Return the names of ``--rung-devices``, each card once; ``all`` and vendors stand for their cards."""
    found: list[str] = []
    for word in str(config.getoption("--rung-devices")).split(","):
        if name := word.strip():
            found += _cards(name.lower()) or [name]
    return list(dict.fromkeys(found))


def _cards(group: str) -> list[str]:
    """Return the cards of a vendor, or of ``all``; nothing for the name of one card."""
    if group not in ("all", *_VENDORS):
        return []
    from rung.hardware import catalog

    rows = catalog.architectures()
    return [
        product.name
        for product in catalog.products()
        if rows[product.arch].kind != "cpu" and group in ("all", rows[product.arch].vendor)
    ]
