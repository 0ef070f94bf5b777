"""GPUs and what their multiprocessors hold."""
