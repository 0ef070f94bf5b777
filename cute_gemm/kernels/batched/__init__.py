"""Batches of small products, several of which a CTA computes."""
