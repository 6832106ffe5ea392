"""The command line without a preloaded process: ``python -m dpsweep.cli``."""

from dpsweep.cli import environment
from dpsweep.cli.main import main

environment.check()
main()
