# Readable from Python too: columns are made of what an origin holds.
cdef class Origin:
    cdef readonly str topic
    cdef readonly object partition
    cdef readonly object leader_epoch
    cdef readonly object timestamp_type
    cdef readonly object key_deserializer
    cdef readonly object value_deserializer
