"""Measurements behind numbers of the documentation.

`speed` says what things cost, `campaigns` try whether they hold, `evidence` has studies that were made once;
`findings` and `tables` write pages from all that, `gpu` is what a machine with a GPU runs. Their results are
in the folder results.
"""
