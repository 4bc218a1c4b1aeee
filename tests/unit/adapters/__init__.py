"""Tests of the adapters, one folder a technology."""
