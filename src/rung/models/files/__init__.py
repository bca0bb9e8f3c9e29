"""Readers of model files: GGUF, safetensors, JSON. Everything they read is hostile until it is checked."""
