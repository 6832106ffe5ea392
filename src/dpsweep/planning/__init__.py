"""What a study costs, what is left of it, how far it is, and how its jobs run on a cluster."""
