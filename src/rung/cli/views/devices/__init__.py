"""Devices as a list, a screen and a verdict."""
