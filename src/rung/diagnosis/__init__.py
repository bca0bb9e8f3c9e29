"""Which errors are about compatibility, and what they mean: one knowledge base for running and explaining."""

from rung.diagnosis.match import Match, Signature, classify, match, match_alone, signatures

__all__ = ["Match", "Signature", "classify", "match", "match_alone", "signatures"]
