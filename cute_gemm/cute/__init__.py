"""CuTe's layouts, atoms and tiled copies."""
