"""`python -m cape_stream.demos.chat`: run it until Ctrl-C."""

import sys
import threading
from contextlib import suppress

from cape_stream.demos.chat.stage import opened

if __name__ == "__main__":
    with opened() as (page, _), suppress(KeyboardInterrupt):
        sys.stdout.write(f"chat on {page} (Ctrl-C stops)\n")
        sys.stdout.flush()
        threading.Event().wait()
