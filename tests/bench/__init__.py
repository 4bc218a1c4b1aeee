"""Measurements, each one command with its figures as JSON in the last line. Never run by CI."""
