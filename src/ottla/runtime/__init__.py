"""The only package with sockets, threads, files, clocks and random numbers: it carries out what the cores decide.

The client's side is ``network_thread`` with ``sockets`` and ``resolver``; the broker's is ``broker_node`` with ``server``,
``disk``, ``data_dir`` and ``log_files``. Invariant: nothing here decides what a message means.
"""
