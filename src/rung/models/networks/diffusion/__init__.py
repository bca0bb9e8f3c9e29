"""Denoisers and autoencoders of pictures and video."""
