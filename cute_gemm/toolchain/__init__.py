"""From C++ text to a cubin, and what is in it."""
