"""Proving and binding: children, probes, self-checks, quarantine, the journal of what happened."""
