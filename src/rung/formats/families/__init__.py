"""Codecs by family: the layout of a block, how it is decoded, and how weights are encoded."""
