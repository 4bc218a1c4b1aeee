"""What only claims in files have: ages, folders and leftovers."""
