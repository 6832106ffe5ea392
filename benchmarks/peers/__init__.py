"""Measure other libraries of private training beside dpsweep, for docs/peers.md.

``layers``: which layers does each clip rightly? ``budgets``: what does each really run for a budget?
``speed``: time and memory of a step. Each writes a file of benchmarks/results/peers.
"""
