"""Fixes of kernels and of copies: changes, and the search for them."""
