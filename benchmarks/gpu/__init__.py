"""Checks and measurements on a GPU: see `python -m benchmarks.gpu --help`."""
