# Features of C compilers for which Cython has no name.
cdef extern from *:
    """
    #if defined(__GNUC__)
    #define ottla_prefetch_for_write(address) __builtin_prefetch((address), 1)
    #else
    #define ottla_prefetch_for_write(address) ((void) (address))
    #endif
    """
    void prefetch_for_write "ottla_prefetch_for_write"(const void* address) nogil
