"""Training: adapters with TRL (``tune``), and optimizers with 8-bit state."""
