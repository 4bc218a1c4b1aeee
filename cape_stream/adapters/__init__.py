"""Technologies behind the ports: each folder is one, and knows none of the others."""
