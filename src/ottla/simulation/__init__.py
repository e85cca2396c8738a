"""The cores of Ottla under a virtual clock: brokers, clients and ZooKeeper in one process, with faults, from one seed.

Owns the stand-ins for threads, sockets, files and clocks, what goes wrong, and the judge of a run. Must not know ``runtime``, for
which it stands. Invariant: the same seed gives the same history, on every machine.
"""
