"""Devices that tests run on: simulated cards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rung


def simulated_card(name: str, *, autouse: bool = False) -> Callable[..., Any]:
    """Return a fixture that simulates the card while a test runs, and gives its device."""

    @pytest.fixture(name="card", autouse=autouse)
    def card() -> Iterator[Any]:
        with rung.simulate(name) as device:
            yield device

    return card


def fresh_cache() -> Callable[..., Any]:
    """Return a fixture for every test of a module: an empty folder for what rung keeps, and its path."""

    @pytest.fixture(name="cache", autouse=True)
    def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    return cache


def software_adapter() -> Callable[..., Any]:
    """Return a fixture of the software adapter of this machine; tests are skipped where there is none."""

    @pytest.fixture(name="adapter")
    def adapter() -> Any:
        from rung.hardware import detect
        from rung.hardware.families import webgpu

        device = next((d for d in detect.devices(software_adapters=True) if d.arch == webgpu.SOFTWARE), None)
        if device is None:
            pytest.skip(f"no software adapter here: {webgpu.absence() or 'apt install mesa-vulkan-drivers'}")
        return device

    return adapter
