"""Reports on a copy of the user's own, evaluated by the model of the kernels' reports."""
