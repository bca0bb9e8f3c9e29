"""Gaussian splats projected, drawn and differentiated."""
