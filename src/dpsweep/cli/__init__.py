"""The command line: one command per stage, and commands for people."""
