"""Rules about facts and signatures; see ``evidence.py`` for what a rule is, ``rows.py`` for how one is added."""

from rung.diagnosis.rules.rows import RULES

__all__ = ["RULES"]
