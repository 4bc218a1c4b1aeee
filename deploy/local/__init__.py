"""Real services on this machine, for tests and `make up`."""
