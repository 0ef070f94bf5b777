"""Predicted times: footprints, costs, corrections, and calibrations."""
