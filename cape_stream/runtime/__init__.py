"""Carries out what core decides: loops, commits, recovery, and the loop of workers."""
