"""Reports: every memory access of a kernel, its cost and its fix."""
