"""Functions and classes of torch that behave as on the simulated card."""
