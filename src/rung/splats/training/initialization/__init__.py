"""The splats that training begins with."""
