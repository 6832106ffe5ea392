"""Datasets of the demo, which every machine has: nothing else of dpsweep needs them.

- `dpsweep.data.demo.digits`: handwritten digits, private;
- `dpsweep.data.demo.glyphs`: rendered letters and digits, public;
- `dpsweep.data.demo.docstrings`: texts, private and public.
"""
