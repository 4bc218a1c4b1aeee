"""Run by `make demo-queues`."""

import sys

from cape_stream.demos.queues.show import main

sys.exit(main())
