"""Encoders: texts to embeddings."""
