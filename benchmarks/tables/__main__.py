"""Write the tables of docs/*.md from benchmarks/results.

python -m benchmarks.tables
"""

from benchmarks.common import command_line
from benchmarks.tables import write_tables

if __name__ == "__main__":
    command_line(__doc__, prog="python -m benchmarks.tables").parse_args()
    write_tables()
