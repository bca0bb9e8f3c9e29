"""The ops and their ladders; importing this package registers all of them, without torch."""

from rung.core.registry import ladders
from rung.ops import attention, decode_step, embedding, linear, rasterize  # noqa: F401  importing registers the ladders

LADDERS = ladders()
