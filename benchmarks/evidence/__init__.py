"""Studies that were made once, behind what the documentation says: verdicts, bounds, prices, advice."""
