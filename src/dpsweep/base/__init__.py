"""Errors, files, units and GPUs. Every other package may import this one."""
