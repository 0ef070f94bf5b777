"""A GEMM worked out: kernel selection, launches, and calls of them."""
