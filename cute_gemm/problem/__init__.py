"""What is asked for: arrays, types, descriptors, and the result in NumPy."""
