"""Which GPU code and which CPU instructions are inside files, and what of it runs on a device: read, never loaded."""
