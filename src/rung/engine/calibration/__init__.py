"""Second moments of activations, gathered on a calibration text."""
