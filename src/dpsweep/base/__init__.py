"""Errors, files, GPUs, and numbers and texts for people. Every other package may import this one."""
