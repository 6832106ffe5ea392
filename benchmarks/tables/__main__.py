"""Write the tables of docs/*.md from benchmarks/results/*.json.

    python -m benchmarks.tables

A table stands between two comments of a document and is replaced there; a result that has not
been measured yet becomes a line that says which command measures it.
"""

from benchmarks.common import command_line
from benchmarks.tables import write_tables

if __name__ == "__main__":
    command_line(__doc__, prog="python -m benchmarks.tables").parse_args()
    write_tables()
