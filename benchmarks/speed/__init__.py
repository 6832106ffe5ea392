"""Measurements of costs: optimizer steps, memory, calibration."""
