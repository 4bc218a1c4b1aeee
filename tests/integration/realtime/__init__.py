"""Stream servers as clients meet them: real sockets, real Valkey, real browsers."""
