"""Open language models by name: what their configurations and published sizes are, without their weights.

People edit ``models.table``, a line a model; its head says what each column holds and where the figures come from.
"""

from rung.models.catalog.names import Match, find, find_near, split_format
from rung.models.catalog.outline import card_of, outline_of
from rung.models.catalog.rows import KnownModel, known_models

__all__ = ["KnownModel", "Match", "card_of", "find", "find_near", "known_models", "outline_of", "split_format"]
