# Declared here so that other compiled modules call it without Python objects, and without the GIL.
cdef unsigned long long hash_of_key(const unsigned char* data, Py_ssize_t length) noexcept nogil
cpdef unsigned long long murmur2(bytes key)
