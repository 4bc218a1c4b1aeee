"""Values that cross every border of the system; they know nothing and import nothing."""
