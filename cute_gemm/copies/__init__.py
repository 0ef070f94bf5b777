"""``analyze_copy``: tiled copies of the user's own, and their fixes."""
