"""One unit at a time, no input or output; mirrors the package."""
