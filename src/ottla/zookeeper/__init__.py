"""ZooKeeper without sockets: its operations as values, Kafka 0.8's nodes, and the client's side of a session.

Owns what the two ZooKeeper generations of group coordination have in common. Must not know kazoo, sockets, threads or clocks, nor
the consumers and brokers that use it. Invariant: everything here is a value or takes ``(input, now)`` and returns values.
"""
