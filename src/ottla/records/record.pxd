cimport cython
from ottla.records.batch cimport Batch

# Readable from Python, too, for the columns of topic, partition and timestamp type.
cdef class Origin:
    cdef readonly str topic
    cdef readonly object partition
    cdef readonly object leader_epoch
    cdef readonly object timestamp_type
    cdef readonly object key_deserializer
    cdef readonly object value_deserializer
    cdef readonly bint deserialize_nulls

@cython.final  # 5 ns a record: its methods are called directly
cdef class Walk:
    cdef object _go_on
    cdef object _clock
    cdef object _segments
    cdef Batch _batch
    cdef Origin _origin
    cdef Py_ssize_t _row
    cdef Py_ssize_t _stop
    cdef bint _interrupted
    cdef public double ask_at
    cdef public object current
    cdef readonly Py_ssize_t at
    cdef bint _is_due(self) except -1
    cdef _next_slice(self)
