"""Products through WebGPU with activations as signed bytes."""
