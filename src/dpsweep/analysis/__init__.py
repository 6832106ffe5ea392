"""Reads result files into tidy frames and computes the paper's statistics. No torch here."""
