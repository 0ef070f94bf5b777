"""The tutorial kernels: FMA on CUDA cores."""
