"""The in-flight state, file for file."""
