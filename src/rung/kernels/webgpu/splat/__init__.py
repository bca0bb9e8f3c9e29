"""Gaussian splats in WGSL: projected, sorted into tiles, drawn, and the way back for gradients.

``sorting`` has prefix sums and a stable radix sort, ``lists`` the splats of each tile, ``projection`` and
``projection_back`` the way between the world and the picture, ``tiles`` what happens in a tile; ``drawing`` runs all of
it. Nothing is added in an order that chance decides, so the same inputs give the same bits.
"""

#: Bytes of a workgroup's memory that the largest of these kernels takes, ``tiles.blame``.
WORKGROUP_BYTES = 4 * 4096 + 16 * 256 + 16 * 24 + 4 * 9
