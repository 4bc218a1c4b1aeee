"""The values, file for file."""
