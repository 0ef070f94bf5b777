"""Parts of a product, beside A, B and C: groups, scales, packed operands, slices of K."""
