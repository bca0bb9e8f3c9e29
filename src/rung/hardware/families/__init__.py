"""One file per kind of device: who is there, from the driver."""
