from ottla.records.batch cimport Batch

cdef class PartitionReader:
    cdef readonly object topic
    cdef readonly object partition
    cdef readonly long long next_offset
    cdef readonly long long bytes_read
    cdef long long _epoch
    cdef object _source
    cdef const unsigned char* _data
    cdef Py_ssize_t _length
    cdef Py_ssize_t _position
    cdef bint _check_crcs
    cdef bint _committed_only
    cdef bint _no_whole_batch
    cdef object _max_batch_bytes
    cdef list _aborted
    cdef set _aborted_producers
    cdef object _key_deserializer
    cdef object _value_deserializer
    cdef bint _deserialize_nulls
    cdef object _origin
    cdef int _origin_epoch
    cdef int _origin_stamp
    cdef Batch _batch
    cdef Py_ssize_t _row
    cdef _leave(self, Batch batch)
    cdef bint _advance(self) except -1
    cdef _origin_of(self, Batch batch)
    cdef bint _hidden(self, Batch batch) except -1
