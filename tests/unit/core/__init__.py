"""The core, file for file."""
