"""The driver: loaded kernels, launches, memory and events."""
