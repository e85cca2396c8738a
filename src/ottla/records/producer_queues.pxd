# Declared here because sizes, times and the memory of a batch are C types.
cimport cython

cdef class TopicQueues:
    cdef readonly object name
    cdef readonly object accumulator
    cdef readonly list queues
    cdef readonly long long used_at
    cdef readonly object available
    cdef public object weights
    cdef Py_ssize_t count
    cdef Py_ssize_t sticky
    cdef long long sticky_bytes

cdef class PartitionQueue:
    cdef readonly TopicQueues topic
    cdef readonly Py_ssize_t partition
    cdef readonly object tp
    cdef readonly object closed
    cdef readonly ProducerBatch open
    cdef Py_ssize_t usual

cdef class ProducerBatch:
    cdef readonly PartitionQueue queue
    cdef readonly object state
    cdef readonly long long created_at
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly list parts
    cdef readonly object base_offset
    cdef readonly object log_append_time
    cdef readonly object error
    cdef readonly list callbacks
    cdef readonly list waiters
    cdef public bint seen
    cdef public object sequence
    cdef public object producer
    cdef public object attempts
    cdef public object retry_at
    cdef public object last_error
    cdef public bint is_transactional
    cdef Py_ssize_t room
    cdef bytearray memory
    cdef unsigned char* data
    cdef _wake(self)
    cdef _allocate(self, Py_ssize_t room)

@cython.final
cdef class Delivery:
    cdef readonly ProducerBatch batch
    cdef readonly int index
    cdef long long _timestamp
