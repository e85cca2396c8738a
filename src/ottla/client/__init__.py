"""The core of a client: state machines and request managers, which are polled, and the public calls.

Owns the decisions of the network thread and of the application's thread, and the values that they exchange (``effects``,
``events``, ``subscription``). ``assembly`` connects all managers of a consumer, and ``core`` runs one pass over them. The packages,
none of which imports one above itself:

- ``calls``: the public calls, on the application's thread
- ``health``: the health and metrics of a consumer; ``positions``: commits, offsets and the validation of positions
- ``admin``: the calls of an ``Admin``; ``groups``: a member of a group, of any protocol; ``fetch``: Fetch and its sessions
- ``cluster``, ``connections``: metadata, and the connections to brokers

Must not know sockets, threads or clocks. Invariant: the same inputs at the same times make the same decisions.
"""
