"""Event sources, as far as they can be tested without a server."""
