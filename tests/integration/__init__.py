"""Real brokers, real processes, real kills; the judge reads only sources and sinks."""
