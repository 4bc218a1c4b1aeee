"""The loops: engine and worker."""
