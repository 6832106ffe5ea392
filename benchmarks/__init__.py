"""Measurements behind numbers of the documentation."""
