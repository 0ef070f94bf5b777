"""Problems: arrays, types, descriptors, and the result in NumPy."""
