"""The command line as ``python -m dpsweep``."""

from dpsweep.cli.preload import main

if __name__ == "__main__":
    main()
