"""What would fix an access."""
