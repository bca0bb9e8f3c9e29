"""rung: any model, on the device you have."""
