# Declarations for the modules that fill columns, which use them without Python calls.
cdef class Block:
    cdef list kept
    cdef long long free
    cdef long long end
    cdef long long token
    cdef Py_ssize_t users
    cdef long long _fresh(self, long long size) except -1
    cdef long long user(self)
    cpdef long long take(self, long long size) except -1
    cpdef long long zeros(self, long long size) except -1
    cpdef array(self, long long address, long long length, Py_ssize_t buffers, Py_ssize_t children)
    cpdef long long child(self, long long array, Py_ssize_t number)
    cpdef point(self, long long array, Py_ssize_t number, long long address)
    cpdef long long buffer(self, long long array, Py_ssize_t number, long long size) except -1
    cpdef count_nulls(self, long long array, long long nulls)
    cpdef long long validity(self, long long array, long long nulls) except -1
    cpdef hand_out(self)
