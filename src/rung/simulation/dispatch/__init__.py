"""How a simulation sees the operations of torch, in every thread."""
