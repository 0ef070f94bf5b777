"""The toolchain: from C++ text to a cubin."""
