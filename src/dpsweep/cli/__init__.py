"""The command line: one command for each stage of the workflow, and commands for users."""
