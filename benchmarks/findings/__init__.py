"""Numbers and pictures of docs/findings.md, from the trials of its studies."""
