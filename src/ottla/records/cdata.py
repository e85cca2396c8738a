"""Columns handed to any Arrow library: the C data, C stream and PyCapsule interfaces, without a library of our own.

Owns the C structures and who frees them. Must not know which columns there are. Invariants: a structure that was handed out
keeps its buffers alive until its ``release`` is called, each child by itself, from whatever thread; what is never taken is
freed with its capsule.

The structures are seen as rows of 64-bit words and called back through ``ctypes``, so that the source is the same compiled or
not. A column or a row of columns is a node as in ``columns``; a field is (format, name, children).
Source: "The Arrow C data interface", "The Arrow C stream interface", "The Arrow PyCapsule Interface".
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython

import ctypes

COMPILED = cython.compiled

# Words of the structures.
# ArrowArray: length, null count, offset, buffers, children, buffers*, children*, dictionary*, release, private.
# ArrowSchema: format*, name*, metadata*, flags, children, children*, dictionary*, release, private.
# ArrowArrayStream: get_schema, get_next, get_last_error, release, private.
_NULLABLE = 2
_EIO = 5
_CAPSULE = b"arrow_array_stream"

_alive: dict = {}
"""What each structure in somebody's hands keeps alive, by the number in its private word."""


@cython.cfunc
def _words(address: cython.longlong) -> cython.p_longlong:
    if cython.compiled:
        return cython.cast(cython.p_longlong, cython.cast(cython.size_t, address))
    return (ctypes.c_longlong * 10).from_address(address)


@cython.cfunc
def _address(buffer: bytearray) -> cython.longlong:
    if cython.compiled:
        raw: cython.p_char = buffer
        return cython.cast(cython.longlong, cython.cast(cython.size_t, raw))
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


@cython.final
@cython.cclass
class Block:
    """The memory of one tree of structures, given out word by word, and whatever they point to.

    It stays alive until every structure in it was released: ``users`` counts those that were not.
    """

    memory: bytearray
    kept: object
    free: cython.longlong
    token: cython.longlong
    users: cython.Py_ssize_t

    def __init__(self, words, kept) -> None:
        self.memory = bytearray(8 * words)
        self.kept = kept
        self.free = self.token = _address(self.memory)
        self.users = 0
        _alive[self.token] = self

    @cython.cfunc
    def take(self, words: cython.longlong) -> cython.longlong:
        """The address of so many words more."""
        address: cython.longlong = self.free
        self.free = address + 8 * words
        return address

    @cython.cfunc
    def user(self) -> cython.longlong:
        """What one more structure is to know of its block."""
        self.users += 1
        return self.token


@cython.cfunc
def _dismiss(token: cython.longlong):
    block: Block = _alive[token]
    block.users -= 1
    if block.users == 0:
        del _alive[token]


def export_array(node):
    """The address of an ArrowArray, which lives until it is released, by whoever it was moved to."""
    block = Block(_array_words(node), node)
    address: cython.longlong = block.take(10)
    _write_array(node, block, address)
    return address


@cython.cfunc
def _array_words(node: tuple) -> cython.Py_ssize_t:
    words: cython.Py_ssize_t = 10 + len(node[2]) + len(node[3])
    for child in node[3]:
        words += _array_words(child)
    return words


@cython.cfunc
def _write_array(node: tuple, block: Block, address: cython.longlong):
    at: cython.longlong
    position: cython.Py_ssize_t
    words: cython.p_longlong = _words(address)
    length, nulls, buffers, children = node
    words[0] = length
    words[1] = nulls
    words[2] = 0
    words[3] = len(buffers)
    words[4] = len(children)
    words[5] = block.take(len(buffers))
    words[6] = block.take(len(children))
    words[7] = 0
    words[8] = _RELEASE_ARRAY
    words[9] = block.user()
    pointers: cython.p_longlong = _words(words[5])
    for position, buffer in enumerate(buffers):
        pointers[position] = 0 if buffer is None else _address(buffer)
    pointers = _words(words[6])
    for position, child in enumerate(children):
        at = block.take(10)
        pointers[position] = at
        _write_array(child, block, at)


@cython.cfunc
def _schema_words(field: tuple) -> cython.Py_ssize_t:
    words: cython.Py_ssize_t = 9 + len(field[2])
    for child in field[2]:
        words += _schema_words(child)
    return words


@cython.cfunc
def _write_schema(field: tuple, block: Block, address: cython.longlong):
    at: cython.longlong
    position: cython.Py_ssize_t
    words: cython.p_longlong = _words(address)
    form, name, children = field
    texts = [bytearray(form.encode() + b"\0"), bytearray(name.encode() + b"\0")]
    block.kept.append(texts)
    words[0] = _address(texts[0])
    words[1] = _address(texts[1])
    words[2] = 0
    words[3] = _NULLABLE
    words[4] = len(children)
    words[5] = block.take(len(children))
    words[6] = 0
    words[7] = _RELEASE_SCHEMA
    words[8] = block.user()
    pointers: cython.p_longlong = _words(words[5])
    for position, child in enumerate(children):
        at = block.take(9)
        pointers[position] = at
        _write_schema(child, block, at)


@cython.cfunc
def _release(address: cython.longlong, children_at: cython.int, release_at: cython.int):
    """Release a structure and those of its children that nobody moved away."""
    number: cython.Py_ssize_t
    words: cython.p_longlong = _words(address)
    children: cython.p_longlong = _words(words[children_at])
    child: cython.p_longlong
    for number in range(words[4]):
        child = _words(children[number])
        if child[release_at] != 0:
            _release(children[number], children_at, release_at)
    words[release_at] = 0
    _dismiss(words[release_at + 1])


@cython.cfunc
def _move(source: cython.longlong, target: cython.longlong, count: cython.int):
    number: cython.int
    for number in range(count):
        _words(target)[number] = _words(source)[number]


def release_array(address):
    """Let go of an ArrowArray and of what is left of its children."""
    _release(address, 6, 8)


def release_schema(address):
    """Let go of an ArrowSchema and of what is left of its children."""
    _release(address, 5, 7)


class _Stream:
    """What a stream still has to give, and what went wrong last. Its memory stays, because its address is its token."""

    def __init__(self, field, nodes, memory) -> None:
        self.memory = memory
        self.field = field
        self.nodes = iter(nodes)
        self.error = bytearray(b"\0")


def _stream_of(address) -> _Stream:
    return _alive[_words(address)[4]]


def _get_schema(stream, out):
    field = _stream_of(stream).field
    block = Block(_schema_words(field), [])
    address: cython.longlong = block.take(9)
    _write_schema(field, block, address)
    _move(address, out, 9)
    return 0


def _get_next(stream, out):
    owner = _stream_of(stream)
    try:
        node = next(owner.nodes, None)
        if node is None:
            _words(out)[8] = 0
        else:
            _move(export_array(node), out, 10)
    except Exception as error:
        owner.error = bytearray(repr(error).encode() + b"\0")
        return _EIO
    return 0


def _get_last_error(stream):
    return _address(_stream_of(stream).error)


def _release_stream(stream):
    del _alive[_words(stream)[4]]
    _words(stream)[3] = 0


_pointer = ctypes.c_void_p
_ONE = ctypes.CFUNCTYPE(None, _pointer)
_CALLBACKS = (
    _ONE(release_array),
    _ONE(release_schema),
    ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer)(_get_schema),
    ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer)(_get_next),
    ctypes.CFUNCTYPE(_pointer, _pointer)(_get_last_error),
    _ONE(_release_stream),
)
_ENTRIES = [ctypes.cast(callback, _pointer).value for callback in _CALLBACKS]
_RELEASE_ARRAY: cython.longlong = _ENTRIES[0]
_RELEASE_SCHEMA: cython.longlong = _ENTRIES[1]

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, _pointer, ctypes.c_char_p, _pointer)(("PyCapsule_New", ctypes.pythonapi))
_pointer_in = ctypes.PYFUNCTYPE(_pointer, _pointer, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_capsules: dict = {}


def _forget(capsule):
    """A capsule goes: what nobody took out of it is released, then its memory is freed."""
    address = _pointer_in(capsule, _CAPSULE)
    if _words(address)[3] != 0:
        _release_stream(address)
    del _capsules[address]


_FORGET = ctypes.PYFUNCTYPE(None, _pointer)(_forget)


def stream_capsule(field, nodes):
    """A capsule with an ArrowArrayStream that gives one array for each node; a node made lazily may raise."""
    memory = bytearray(40)
    address = _address(memory)
    words: cython.p_longlong = _words(address)
    words[0], words[1], words[2], words[3] = _ENTRIES[2:]
    words[4] = address
    _alive[address] = _Stream(field, nodes, memory)
    _capsules[address] = memory
    return _new_capsule(address, _CAPSULE, ctypes.cast(_FORGET, _pointer))
