"""What runs cape_stream somewhere; not part of the wheel."""
