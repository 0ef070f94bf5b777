"""TMA and wgmma."""
