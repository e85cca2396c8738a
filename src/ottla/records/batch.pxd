# Declarations for other compiled modules, which use them without Python calls.
cdef class Batch:
    cdef object source
    cdef object owner
    cdef object table
    cdef const unsigned char* data
    cdef long long* times
    cdef int* fields
    cdef public object origin
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t size
    cdef readonly long long base_offset
    cdef readonly long long last_offset
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly long long producer_id
    cdef readonly long long crc
    cdef readonly int leader_epoch
    cdef readonly int attributes
    cdef readonly Py_ssize_t claimed
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t payload_size
    cdef readonly Py_ssize_t key_bytes
    cdef readonly Py_ssize_t value_bytes
    cdef readonly bint has_headers
    cpdef require_crc(self)
    cpdef index(self, max_bytes)
    cpdef verify(self, max_bytes)
    cdef _load(self, max_bytes)
    cdef _make_table(self, Py_ssize_t rows)
    cpdef Py_ssize_t first_from(self, long long offset) except -1
    cpdef marker(self)

cpdef bytearray new_buffer(Py_ssize_t size)
cdef const unsigned char* pointer_to(object source) except NULL
cdef Batch open_batch(object source, const unsigned char* data, Py_ssize_t length, Py_ssize_t position)
