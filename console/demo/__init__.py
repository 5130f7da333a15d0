"""The embedded host: a tiny real target and drafter, a tiny engine that serves them, and an SSH server on loopback."""
