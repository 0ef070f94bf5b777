"""Reports: every memory access of a kernel, what it costs, and what would mend it."""
