# varint.py for compiled modules: inline functions, so that the C compiler can optimize their calls.

cdef inline int varint_size(long long number) noexcept nogil:
    cdef unsigned long long left = (<unsigned long long> number << 1) ^ <unsigned long long> (number >> 63)
    cdef int size = 1
    while left >= 0x80:
        left >>= 7
        size += 1
    return size

cdef inline Py_ssize_t put_varint(unsigned char* data, Py_ssize_t at, long long number) noexcept nogil:
    cdef unsigned long long left = (<unsigned long long> number << 1) ^ <unsigned long long> (number >> 63)
    while left >= 0x80:
        data[at] = <unsigned char> (left & 0x7F | 0x80)
        at += 1
        left >>= 7
    data[at] = <unsigned char> left
    return at + 1
