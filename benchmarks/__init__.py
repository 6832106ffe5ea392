"""Measurements behind the numbers of the documentation.

`speed` measures costs, `campaigns` test reliability, and `evidence` has studies that run once. `gpu` runs on
a machine with a GPU. `findings` and `tables` write the results into the pages. Results are in the folder
results.
"""
