"""`python -m cape_stream` is the `cape` command."""

import sys

from cape_stream.cli import main

if __name__ == "__main__":
    sys.exit(main())
