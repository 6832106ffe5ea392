"""Private training: sampling, noise, updates, trials and cells."""
