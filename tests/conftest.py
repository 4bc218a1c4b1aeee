"""What every rung of the ladder shares: real servers, and the word on what was left out."""

pytest_plugins = [
    "tests.left_out",
    "tests.chromium",
    "tests.broker",
    "tests.postgres",
    "tests.sqs",
    "tests.valkey",
]
