"""Kernels of encoders of texts: what lies between the products of a layer, and attention without a mask."""
