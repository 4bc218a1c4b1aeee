"""Hypothesis: clever code against a dumb twin, or against the rule it has to keep."""
