"""Products of a thin operand and a large one, at the bandwidth of memory."""
