# Declared here because pointers and counts are C types.
cdef class Rows:
    cdef readonly Py_ssize_t count
    cdef readonly list origins
    cdef Py_ssize_t segments
    cdef Py_ssize_t key_bytes
    cdef Py_ssize_t value_bytes
    cdef bint has_headers
    cdef list kept
    cdef bytearray memory
    cdef const unsigned char** data
    cdef int** fields
    cdef long long** times
    cdef long long* ends
    cdef long long* bases
    cdef long long* starts
    cdef long long* stops
