"""The broker without its sockets, threads and files: requests, timers and finished jobs in, effects out.

Start reading at ``core`` (the entry points), then ``api/`` (the request handlers) and ``log`` (a partition). Must not know how
bytes are transferred: ``ports`` declares the interfaces that the broker needs, ``effects`` the actions that it requests. Invariant:
acknowledged records are in a log.
"""
