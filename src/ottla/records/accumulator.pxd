# Declared here because sizes are C types, and for other compiled modules.
from ottla.records.producer_queues cimport Delivery, PartitionQueue, ProducerBatch, TopicQueues

cdef class RecordAccumulator:
    cdef readonly dict topics
    cdef readonly dict incomplete
    cdef readonly Py_ssize_t used
    cdef readonly long long freed
    cdef readonly list waiters
    cdef public object settled
    cdef readonly object unseen
    cdef public bint accepts
    cdef public object waits
    cdef Py_ssize_t _batch_size
    cdef Py_ssize_t _memory
    cdef Py_ssize_t _max_record
    cdef bint _ignores_keys
    cdef object _partitioner
    cdef object _nanoseconds
    cdef object _lock
    cdef object _mono
    cdef object _random
    cdef object _wake
    cdef dict _active
    cdef bytes _no_headers
    cdef object _spares
    cdef _append(self, topic, value, key, partition, headers, timestamp, on_delivery)
    cdef Py_ssize_t _most_bytes(self, bytes key, bytes value, bytes headers) except -1
    cdef Py_ssize_t _custom_partition(self, TopicQueues queues, bytes key) except -1
    cdef Delivery _put_now(
        self, TopicQueues queues, Py_ssize_t number, Py_ssize_t most, bytes key, bytes value, bytes headers, long long stamp
    )
    cdef PartitionQueue _sticky(self, TopicQueues queues, Py_ssize_t most)
    cdef PartitionQueue _choose(self, TopicQueues queues, Py_ssize_t most)
    cdef PartitionQueue _next_sticky(self, TopicQueues queues)
    cdef Delivery _put(self, PartitionQueue queue, bytes key, bytes value, bytes headers, long long stamp, long long created_at)
    cdef ProducerBatch _open(self, PartitionQueue queue, Py_ssize_t need, long long stamp, long long created_at)
    cdef bint _grow(self, ProducerBatch batch, Py_ssize_t size) except -1
    cdef _close(self, PartitionQueue queue)
    cdef _call_waiters(self)

cdef class RecordSender:
    cdef public RecordAccumulator _accumulator
    cdef public object _calls
    cdef public object _delivered
    cdef public bint _serialize
