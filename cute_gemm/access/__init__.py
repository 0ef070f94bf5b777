"""Memory accesses, and what they cost: sectors, wavefronts, boxes of TMA."""
