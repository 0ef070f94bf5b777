"""GPUs and occupancy of their multiprocessors."""
