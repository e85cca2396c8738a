# Declared here because tables are C arrays.
cdef Py_ssize_t match_topics(long long* rows, Py_ssize_t row, Py_ssize_t count, long long* names, Py_ssize_t known) noexcept nogil
cdef Py_ssize_t place_rows(long long* rows, Py_ssize_t row, Py_ssize_t count, long long* topics, bint ignores_keys) noexcept nogil
cdef Py_ssize_t measure_headers(long long* rows, Py_ssize_t count, long long* headers) noexcept nogil
cdef Py_ssize_t measure_rows(long long* rows, Py_ssize_t count, long long* slots, long long* topics, Py_ssize_t most) noexcept nogil
cdef Py_ssize_t encode_rows(
    long long* rows, Py_ssize_t row, Py_ssize_t count, long long* headers, long long* slots, long long* topics
) noexcept nogil
cdef Py_ssize_t find_topic(long long* rows, Py_ssize_t count, Py_ssize_t number) noexcept nogil
cdef Py_ssize_t count_sharers(long long* slots, Py_ssize_t slot_count, long long* topics, Py_ssize_t topic_count) noexcept nogil
cdef long long sum_rooms(long long* slots, Py_ssize_t slot_count) noexcept nogil
