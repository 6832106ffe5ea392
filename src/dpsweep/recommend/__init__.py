"""Hyperparameters for a problem that has not been swept, from its size, its guarantee and its head alone."""
