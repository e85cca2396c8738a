"""``ottla compare``: one scripted life of a group on all four generations, in the simulator or on real processes."""
