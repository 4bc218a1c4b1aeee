"""The SQL source on real databases."""
