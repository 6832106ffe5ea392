"""Errors, files, units and GPUs: what every other package may use."""
