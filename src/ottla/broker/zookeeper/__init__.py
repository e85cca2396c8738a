"""What a broker does in ZooKeeper: it registers itself, reads the topics, writes the states of its partitions, and changes topics.

Owns the managers of the broker's session. Must not know kazoo or sockets. Invariant: nothing here is imported by a broker without
ZooKeeper.
"""
