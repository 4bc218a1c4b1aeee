"""Tests of the simulated world itself: what it promises, the simulation tests rely on."""
