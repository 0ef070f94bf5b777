"""Calibration: times of drawn configs on a GPU, and the numbers of predictions fitted to them.

``draw`` says what is measured, ``measure`` measures it, ``times`` keeps it in a file, and ``fit``
returns the `Calibration` (`cute_gemm.cost_model.calibration`) that predicts it best.
"""
