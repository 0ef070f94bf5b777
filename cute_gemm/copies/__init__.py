"""``analyze_copy``: reports on tiled copies, and their fixes."""
