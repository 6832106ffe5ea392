"""Private training: sampling, per-example gradients, updates, trials and cells."""
