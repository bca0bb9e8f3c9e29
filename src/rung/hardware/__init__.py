"""Devices from drivers and kernel files, without torch; the catalogue; the cache of proofs."""
