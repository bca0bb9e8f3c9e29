"""Embeddings of texts: from encoders, and from the hidden states of decoders."""
