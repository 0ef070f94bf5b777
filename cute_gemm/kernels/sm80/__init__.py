"""mma.sync on swizzled shared memory."""
