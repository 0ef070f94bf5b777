"""Plans: kernel selection, launches, and calls of them."""
