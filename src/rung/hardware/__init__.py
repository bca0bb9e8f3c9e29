"""Devices from drivers and kernel files, without torch; the catalog; the cache of proofs."""
