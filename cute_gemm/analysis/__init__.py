"""What every memory access of a kernel costs, by a model of the hardware's counters."""
