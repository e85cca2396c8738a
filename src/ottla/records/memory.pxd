# memory.py for compiled modules: inline functions, so that the C compiler can optimize their calls.
from libc.string cimport memcpy

cdef extern from "Python.h":
    ctypedef struct PyByteArrayObject:
        Py_ssize_t ob_exports

cdef inline int* ints_at(long long address, Py_ssize_t count) noexcept nogil:
    return <int*> <size_t> address

cdef inline long long* longs_at(long long address, Py_ssize_t count) noexcept nogil:
    return <long long*> <size_t> address

cdef inline unsigned char* bytes_at(long long address, Py_ssize_t count) noexcept nogil:
    return <unsigned char*> <size_t> address

cdef inline long long address_of(bytearray buffer):
    return <long long> <size_t> <char*> buffer

cdef inline void copy(
    unsigned char* target, Py_ssize_t at, const unsigned char* source, Py_ssize_t start, Py_ssize_t size
) noexcept nogil:
    memcpy(target + at, source + start, size)

cdef inline bint is_exported(bytearray buffer):
    return (<PyByteArrayObject*> buffer).ob_exports > 0
