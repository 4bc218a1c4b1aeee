"""The realtime channel without sockets."""
