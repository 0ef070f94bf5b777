"""What becomes of the accumulators: expressions traced from Python, C++, NumPy, error bounds."""
