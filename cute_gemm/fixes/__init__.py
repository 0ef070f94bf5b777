"""What fixes of kernels and of copies have in common: changes, and the search for them."""
