"""The coordination layer against real Valkey servers."""
