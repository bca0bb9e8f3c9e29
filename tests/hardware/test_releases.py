"""The table of releases against that of builds: each build has a version, Pythons, a place and, for CUDA, a driver."""

import pytest

from rung.hardware.catalog import releases
from rung.hardware.catalog.releases import builds
from rung.hardware.catalog.rows import numbers, version
from rung.hardware.catalog.support import features
from rung.hardware.catalog.tables import load
from tests.support.rows import each_row


@each_row("build", builds(), lambda b: f"{b}-{b.platform}")
def test_every_build_can_be_had(build):
    release = releases.newest_version(build.release)
    assert version(release) == version(build.release)
    low, high = releases.pythons(build)
    assert version("3.6") <= version(low) <= version(high)
    assert releases.places(build) or build.name == "xpu"
    for source in releases.places(build):
        arguments = releases.arguments(build, source)
        assert arguments or "#" in build.file
        if arguments and not build.file:
            assert arguments[0].startswith(f"torch=={release}")
            # without an index it must be what PyPI gives
            assert len(arguments) == 3 or releases.plain(build, source)
        system = source.partition("-")[0]
        assert bool(releases.minimum_driver(build, system)) == (build.backend == "cuda" and build.platform != "jetson")


def test_newer_toolkits_ask_for_newer_drivers():
    rows = load("releases.toml")["driver"]
    for name in ("linux", "windows"):
        minima = [numbers(row[name]) for row in sorted(rows, key=lambda row: int(row["cuda"]))]
        assert minima == sorted(minima)


def test_every_package_has_a_source_and_is_in_the_table_of_features():
    known = {row["package"] for row in features()}
    for row in load("releases.toml")["package"]:
        assert row["name"] in known
        assert releases.source(row["source"]).startswith("https://")
    for row in load("releases.toml")["place"]:
        assert releases.source(row["source"])


def test_a_plain_install():
    def build(release, name, platform=""):
        return next(b for b in builds() if (b.release, b.name, b.platform) == (release, name, platform))

    assert releases.plain(build("2.15", "cu132"), "linux-x86_64")
    assert not releases.plain(build("2.15", "cu132"), "windows-x86_64")
    assert releases.plain(build("2.15", "cpu"), "windows-x86_64")
    assert not releases.plain(build("2.15", "cpu"), "linux-x86_64")
    assert releases.plain(build("2.10", "cpu"), "linux-aarch64")
    assert not releases.plain(build("2.11", "cpu"), "linux-aarch64")
    assert releases.plain(build("2.11", "cu130", "aarch64"), "linux-aarch64")


@pytest.mark.parametrize(
    ("driver", "last", "fits"),
    [("580.82", "580", True), ("590.1", "580", False), ("590.1", "", True), ("32.1", "JetPack 5", True)],
)
def test_the_last_driver_branch_of_a_card(driver, last, fits):
    assert releases.old_enough(driver, last) is fits
