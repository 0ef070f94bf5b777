"""Parts of a product in addition to A, B and C: groups, scales, packed operands, slices of K."""
