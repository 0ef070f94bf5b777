"""From C++ text to a cubin."""
