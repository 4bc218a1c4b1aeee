"""The driver that users test their Apps with; the simulated worlds have their own folder."""
