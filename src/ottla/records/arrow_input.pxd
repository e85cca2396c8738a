# Declared here because the table of a window is written without Python calls.
from ottla.records.accumulator cimport RecordAccumulator

cdef class RowEncoder:
    cdef readonly object delivery
    cdef readonly Py_ssize_t rows_done
    cdef RecordAccumulator _accumulator
    cdef object _topic
    cdef object _stream
    cdef object _layout
    cdef bytearray _rows
    cdef bytearray _headers
    cdef bytearray _name_table
    cdef bytearray _topics
    cdef bytearray _slots
    cdef list _topic_names
    cdef list _names
    cdef list _queues
    cdef list _batches
    cdef Py_ssize_t _sharers
    cdef long long _available
