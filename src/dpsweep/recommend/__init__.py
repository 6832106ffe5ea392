"""Hyperparameters for a problem without a sweep, from its size, its epsilon and delta, and its head."""
