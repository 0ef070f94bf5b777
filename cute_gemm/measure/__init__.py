"""Kernels checked, timed and counted on a device."""
