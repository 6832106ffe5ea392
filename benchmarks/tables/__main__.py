"""Write the tables of docs/*.md from benchmarks/results/*.json.

    python -m benchmarks.tables

A table stands between two comments of a document and is replaced there; a result that has not
been measured yet becomes a line that says which command measures it.
"""

import argparse

from benchmarks.tables import write_tables

if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__).parse_args()
    write_tables()
