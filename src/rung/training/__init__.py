"""Training: adapters with TRL (``tune``), and optimisers with 8-bit state."""
