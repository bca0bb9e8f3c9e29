"""Adapters (LoRA) beside a model."""
