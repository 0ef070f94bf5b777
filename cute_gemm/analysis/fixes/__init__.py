"""Fixes: changes that make an access better, found by a search with the model."""
