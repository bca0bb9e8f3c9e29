"""Gaussian splats on the device that is there: ``rasterization`` draws them, ``read`` and ``write`` keep their files,
``scene`` reads the cameras of photographs."""

from rung.nn.splatting import rasterization
from rung.splats.cloud import Cloud
from rung.splats.files import read, write
from rung.splats.scenes import scene

__all__ = ["Cloud", "rasterization", "read", "scene", "write"]
