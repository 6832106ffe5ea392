"""Tidy frames of result files, and the paper's statistics. This package does not import torch."""
