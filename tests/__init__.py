"""Everything that shows cape_stream does what it says, cheapest first: see CONTRIBUTING.md."""
