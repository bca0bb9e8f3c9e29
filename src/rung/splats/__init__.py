"""Gaussian splats on the device that is there: ``rasterization`` draws them, ``read`` and ``write`` keep them."""

from rung.nn.splatting import rasterization
from rung.splats.cloud import Cloud
from rung.splats.files import read, write

__all__ = ["Cloud", "rasterization", "read", "write"]
