"""The command line as ``python -m dpsweep``."""

from dpsweep.cli.main import main

if __name__ == "__main__":
    main()
