"""Hold what runs on any torch device: stored weights as tensors, and decoders of common formats."""
