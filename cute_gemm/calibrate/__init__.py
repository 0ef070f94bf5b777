"""Calibration: times of drawn configs on a GPU, and the numbers of predictions fitted to them.

``draw`` selects problems and configs, ``measure`` times them, ``times`` stores times in a file, and
``fit`` returns the `Calibration` (`cute_gemm.cost_model.calibration`) that fits them best.
"""
