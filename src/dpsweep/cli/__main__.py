"""The command line without a preloaded process: ``python -m dpsweep.cli``."""

from dpsweep.cli import surroundings
from dpsweep.cli.main import main

surroundings.prepare()
main()
