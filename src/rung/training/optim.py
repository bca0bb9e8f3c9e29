"""The 8-bit optimizers: ``from rung.training.optim import AdamW8bit``."""

from rung.nn.optim import *  # noqa: F403
from rung.nn.optim import __all__  # noqa: F401
