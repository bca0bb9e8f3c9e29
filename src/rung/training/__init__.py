"""Training: optimisers with 8-bit state."""
