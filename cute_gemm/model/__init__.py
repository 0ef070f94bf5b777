"""The costs of memory accesses, as the hardware counts them."""
