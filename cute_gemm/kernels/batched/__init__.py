"""Batches of small products: a CTA computes several."""
