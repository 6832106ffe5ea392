"""Tests of reliability: kills, random histories, and planted bugs."""
