"""What a client decides: state machines and request managers that are asked and never act, and the calls of its application.

Owns two threads' worth of decisions and their meeting place. At the top are what runs all of it (``assembly``, ``core``) and what
all packages use: effects, events, the subscription. The packages, none of which imports one above itself:

- ``calls``: what runs on the application's thread; ``admin``: what an operator asks
- ``health``: how a consumer is; ``positions``: where it reads on
- ``groups``: a member of a group, of either protocol; ``fetch``: what it reads
- ``cluster``, ``connections``: the brokers, and the connections to them

Must not know sockets, threads or clocks. Invariant: the same inputs at the same times make the same decisions.
"""
