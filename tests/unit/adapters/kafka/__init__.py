"""Kafka without a broker: settings, books and the reading of what the client library says."""
