"""Studies behind the documentation that ran once: verdicts, gradients of networks, theory, pictures."""
