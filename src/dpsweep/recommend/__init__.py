"""Hyperparameters for a problem that has not been swept.

The batch size follows from privacy accounting alone (`rule`); clipping bound and learning rate come
from reference points, the best settings of sweeps on other data (`references`).
"""
