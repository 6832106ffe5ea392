"""Cost, remaining work and progress of a study, and its jobs on a cluster."""
