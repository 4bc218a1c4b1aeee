"""The style guide as tests: what a machine can check is not left to a reviewer."""
