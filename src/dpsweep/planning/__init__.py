"""What a study costs, what is left of it, how it stands, and how its jobs run on a cluster."""
