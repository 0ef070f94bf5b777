"""What would mend an access."""
