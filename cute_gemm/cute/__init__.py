"""Layouts, atoms and tiled copies, as CuTe has them."""
