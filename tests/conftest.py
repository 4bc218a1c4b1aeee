"""What every rung of the ladder shares: the real broker, and the word on what was left out."""

pytest_plugins = ["tests.broker"]
