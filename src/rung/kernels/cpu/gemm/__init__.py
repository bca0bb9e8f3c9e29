"""Products of packed or stored weights with activations."""
