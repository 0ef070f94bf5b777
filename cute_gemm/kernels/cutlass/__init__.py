"""CUTLASS 2.x's own kernel and the model of its shared memory."""
