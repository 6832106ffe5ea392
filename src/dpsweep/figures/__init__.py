"""Figures: every one is a frame of numbers (its CSV) and a drawing of exactly that frame."""

from dpsweep.figures.draw import draw

__all__ = ["draw"]
