"""The admin API, over real sockets."""
