"""Epilogues: expressions traced from Python, C++, NumPy, error bounds."""
