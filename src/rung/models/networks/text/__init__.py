"""Decoders of 2024 to 2026 that ``rung run`` does not build itself: dense ones, mixtures of experts, hybrids."""
