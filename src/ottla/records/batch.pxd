# The one class of this room that other compiled modules read without going through Python.
cdef class BatchIndex:
    cdef object owner
    cdef object table
    cdef const unsigned char* data
    cdef long long* times
    cdef int* fields
    cdef readonly object origin
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef readonly long long base_offset
