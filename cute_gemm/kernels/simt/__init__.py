"""The kernels of the tutorials: FMA on CUDA cores."""
