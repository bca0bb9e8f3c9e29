"""The release of rung and the folder of its package: what the inside needs of ``import rung``."""

from pathlib import Path

__version__ = "0.2.0"

#: The folder of the package.
PACKAGE = Path(__file__).parents[1]
