"""What a memory access costs, as the hardware counts it."""
