"""Checks, times and counters of kernels on a device."""
