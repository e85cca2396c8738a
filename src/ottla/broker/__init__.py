"""The broker without its sockets, threads and files: requests, timers and finished jobs in, effects out.

Begin with ``core`` (what happens to a broker), then ``api/`` (one file an API) and ``log`` (a partition). Must not know how
bytes come and go: ``ports`` says what it needs of the world, ``effects`` what it asks of it. Invariant: what was acknowledged
is in a log.
"""
