"""Composition roots, as far as they can be looked at without running them."""
