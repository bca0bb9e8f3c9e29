"""The model types that can be described, found by folder: each module of ``diffusion``, ``encoders`` and ``text``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

from rung.core.registry import Registry, module_names
from rung.models.networks import diffusion, encoders, text
from rung.models.networks.describing import Description

__all__ = ["DESCRIPTIONS", "Description"]

#: By ``model_type`` (transformers) or ``_class_name`` (diffusers); beside these those of ``rung.models.architectures``.
DESCRIPTIONS: Registry[Description] = Registry("description")


def _found(package: ModuleType) -> Iterator[Description]:
    """Yield ``DESCRIPTIONS`` of each module of a folder, by name."""
    for name in module_names(package.__path__):
        yield from getattr(importlib.import_module(f"{package.__name__}.{name}"), "DESCRIPTIONS", ())


for _package in (text, encoders, diffusion):
    for _description in _found(_package):
        DESCRIPTIONS.register(_description.model_type, _description)
