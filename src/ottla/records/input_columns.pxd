# Declared here because addresses and sizes are C types.
cdef class Column:
    cdef readonly int kind
    cdef readonly list children
    cdef Py_ssize_t width
    cdef Py_ssize_t offset
    cdef Py_ssize_t end
    cdef Py_ssize_t entries
    cdef long long buffers
    cdef long long bits
    cdef long long first
    cdef long long second
    cdef long long cells
    cdef bytearray kept
    cdef _read_dictionary(self, Column values, Py_ssize_t count)

cdef Py_ssize_t mark_nulls(Column column, Py_ssize_t start, Py_ssize_t count, long long* cells, Py_ssize_t at, Py_ssize_t stride) noexcept nogil
cdef Py_ssize_t fill_cells(Column column, Py_ssize_t start, Py_ssize_t count, long long* cells, Py_ssize_t at, Py_ssize_t stride) noexcept nogil
cdef Py_ssize_t fill_ranges(Column column, Py_ssize_t start, Py_ssize_t count, long long* cells, Py_ssize_t at, Py_ssize_t stride) noexcept nogil
cdef Py_ssize_t fill_numbers(
    Column column, Py_ssize_t start, Py_ssize_t count, long long* cells, Py_ssize_t at, Py_ssize_t stride, long long null
) noexcept nogil
cdef Py_ssize_t fill_milliseconds(
    Column column, Py_ssize_t start, Py_ssize_t count, long long* cells, Py_ssize_t at, Py_ssize_t stride, long long null
) noexcept nogil
