"""Memory accesses and their cost: sectors, wavefronts, TMA boxes."""
