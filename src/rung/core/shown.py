"""Values that print as the command line shows them, instead of kilobytes of fields."""

from __future__ import annotations

import importlib


class Shown:
    """A value that ``print`` and notebooks show as the command line does.

    ``VIEW`` names the module that draws it, with the functions ``text`` and ``html``: it lies above what holds values.
    """

    VIEW = ""

    def __str__(self) -> str:
        return str(importlib.import_module(self.VIEW).text(self))

    def _repr_html_(self) -> str:
        return str(importlib.import_module(self.VIEW).html(self))
