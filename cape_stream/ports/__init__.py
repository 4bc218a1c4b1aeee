"""What the runtime needs from the outside world, as Protocols; technologies live in adapters."""
