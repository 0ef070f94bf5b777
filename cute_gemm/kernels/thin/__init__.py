"""A thin operand times a large one, at the speed of memory."""
