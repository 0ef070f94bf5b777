"""The driver: kernels loaded and launched, memory, events."""
