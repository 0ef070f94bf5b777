"""GEMMs of other libraries."""
