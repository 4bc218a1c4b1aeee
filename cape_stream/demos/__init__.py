"""Programs that show cape_stream at work on real data; users start them with `cape demo`."""
