"""The only package with sockets, threads, files, clocks and random numbers: it executes the effects of the cores.

The client's side is ``network_thread`` with ``sockets``, ``tls`` and ``login``; the broker's is ``broker_node`` with
``server``, ``disk``, ``data_dir`` and ``log_files``. Invariant: nothing here decides what a message means.
"""
