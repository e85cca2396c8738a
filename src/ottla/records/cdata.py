"""Exports columns to any Arrow library by the C data, C stream and PyCapsule interfaces, without needing an Arrow library.

Owns the C structures, the memory to which they point, and its release. Must not know the columns. Invariants: an exported structure
keeps its ``Block`` alive until its ``release`` is called, for each child separately, from any thread; arrays that no consumer takes
are freed with the capsule.

The structures are accessed as arrays of 64-bit words and addresses are integers, so that the source is the same compiled or not.
The release of an array, which is called often, is a C function in compiled code; the other callbacks use ``ctypes``. A field is
(format, name, children). The attributes of ``Block`` are declared in ``cdata.pxd``. Source: "The Arrow C data interface", "The
Arrow C stream interface", "The Arrow PyCapsule Interface".
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.libc.string import memset
    from cython.cimports.ottla.records.batch import new_buffer
    from cython.cimports.ottla.records.memory import address_of
else:
    from ottla.records.batch import new_buffer
    from ottla.records.memory import address_of

import ctypes

COMPILED = cython.compiled

# The words of the structures, which have 80, 72 and 40 bytes (literal numbers below).
# ArrowArray: length, null count, offset, buffers, children, buffers*, children*, dictionary*, release, private.
# ArrowSchema: format*, name*, metadata*, flags, children, children*, dictionary*, release, private.
# ArrowArrayStream: get_schema, get_next, get_last_error, release, private.
_NULLABLE = 2
_EIO = 5
_CAPSULE = b"arrow_array_stream"

_alive: dict = {}
"""The number in a structure's private word -> the object that the exported structure keeps alive."""


@cython.cfunc
@cython.inline
def _words(address: cython.longlong, count: cython.Py_ssize_t = 10) -> cython.p_longlong:
    if cython.compiled:
        return cython.cast(cython.p_longlong, cython.cast(cython.size_t, address))
    return (ctypes.c_longlong * count).from_address(address)


class Block:
    """The memory of one tree of structures and of their buffers, allocated piece by piece and never moved.

    ``room`` is the expected size of all pieces; a piece for which there is no room left gets separate memory. After ``hand_out()``
    the block stays alive until all its structures are released: ``users`` counts the others.
    """

    def __init__(self, room) -> None:
        self.kept = []
        self.users = 0
        self.free = self.token = self._fresh(room)
        self.end = self.free + room

    def _fresh(self, size):
        memory = new_buffer(size + 64)
        self.kept.append(memory)
        return (address_of(memory) + 63) & -64

    def take(self, size):
        """The address of ``size`` new bytes, a multiple of 64, as Arrow recommends."""
        address: cython.longlong = (self.free + 63) & -64
        if address + size > self.end:
            return self._fresh(size)
        self.free = address + size
        return address

    def zeros(self, size):
        """The address of ``size`` new bytes that are zero."""
        address: cython.longlong = self.take(size)
        if cython.compiled:
            memset(_words(address), 0, size)
        else:
            ctypes.memset(address, 0, size)
        return address

    def array(self, address, length, buffers, children):
        """Write an ArrowArray without nulls. The caller sets its buffers and children."""
        number: cython.Py_ssize_t
        words: cython.p_longlong = _words(address)
        words[0] = length
        words[1] = words[2] = words[7] = 0
        words[3] = buffers
        words[4] = children
        words[5] = self.take(8 * (buffers + children) + 80 * children)
        words[6] = words[5] + 8 * buffers
        words[8] = _RELEASE_ARRAY
        words[9] = self.user()
        pointers: cython.p_longlong = _words(words[5], buffers + children)
        for number in range(buffers):
            pointers[number] = 0
        for number in range(children):
            pointers[buffers + number] = words[6] + 8 * children + 80 * number

    def child(self, array, number):
        """The address at which a child's structure is to be written."""
        return _words(_words(array)[6], number + 1)[number]

    def point(self, array, number, address):
        """Set the address of an array's buffer."""
        _words(_words(array)[5], number + 1)[number] = address

    def buffer(self, array, number, size):
        """Allocate ``size`` bytes as this buffer of an array; return their address."""
        address: cython.longlong = self.take(size)
        self.point(array, number, address)
        return address

    def count_nulls(self, array, nulls):
        """Set the number of an array's nulls."""
        _words(array)[1] = nulls

    def validity(self, array, nulls):
        """Allocate an array's validity bits, all unset, and set the number of its nulls; return the address."""
        address: cython.longlong = self.zeros((_words(array)[0] + 7) // 8)
        self.count_nulls(array, nulls)
        self.point(array, 0, address)
        return address

    def user(self):
        """The private word of one more structure, which then counts as a user of the block."""
        self.users += 1
        return self.token

    def hand_out(self) -> None:
        """Let the exported structures keep the block alive."""
        _alive[self.token] = self


@cython.cfunc
def _dismiss(token: cython.longlong, users: cython.Py_ssize_t):
    block: Block = _alive[token]
    block.users -= users
    if block.users == 0:
        del _alive[token]


@cython.cfunc
def _write_schema(field: tuple, block: Block, address: cython.longlong):
    at: cython.longlong
    position: cython.Py_ssize_t
    words: cython.p_longlong = _words(address)
    form, name, children = field
    texts = [bytearray(form.encode() + b"\0"), bytearray(name.encode() + b"\0")]
    block.kept.append(texts)
    words[0] = address_of(texts[0])
    words[1] = address_of(texts[1])
    words[2] = 0
    words[3] = _NULLABLE
    words[4] = len(children)
    words[5] = block.take(8 * len(children))
    words[6] = 0
    words[7] = _RELEASE_SCHEMA
    words[8] = block.user()
    pointers: cython.p_longlong = _words(words[5], len(children))
    for position, child in enumerate(children):
        at = block.take(72)
        pointers[position] = at
        _write_schema(child, block, at)


@cython.cfunc
def _let_go(address: cython.longlong, children_at: cython.int, release_at: cython.int) -> cython.Py_ssize_t:
    """Mark a structure as released, with those of its children that were not moved; return their number."""
    number: cython.Py_ssize_t
    count: cython.Py_ssize_t = 1
    words: cython.p_longlong = _words(address)
    children: cython.p_longlong = _words(words[children_at], words[4])
    words[release_at] = 0
    for number in range(words[4]):
        if _words(children[number])[release_at] != 0:
            count += _let_go(children[number], children_at, release_at)
    return count


@cython.cfunc
def _move(source: cython.longlong, target: cython.longlong, count: cython.int):
    number: cython.int
    for number in range(count):
        _words(target)[number] = _words(source)[number]


def release_array(address):
    """Release an ArrowArray and those of its children that were not moved."""
    _dismiss(_words(address)[9], _let_go(address, 6, 8))


@cython.cfunc
@cython.with_gil
@cython.exceptval(check=False)
def _array_released(array: cython.p_longlong) -> cython.void:
    """``release_array`` as a C function."""
    if cython.compiled:
        release_array(cython.cast(cython.longlong, cython.cast(cython.size_t, array)))


def release_schema(address):
    """Release an ArrowSchema and those of its children that were not moved."""
    _dismiss(_words(address)[8], _let_go(address, 5, 7))


class _Stream:
    """The remaining arrays of a stream, and its last error. Its memory is kept, because its address is its token."""

    def __init__(self, field, arrays, memory) -> None:
        self.memory = memory
        self.field = field
        self.arrays = iter(arrays)
        self.error = bytearray(b"\0")


def _stream_of(address) -> _Stream:
    return _alive[_words(address)[4]]


def _get_schema(stream, out):
    field = _stream_of(stream).field
    block = Block(4096)
    address: cython.longlong = block.take(72)
    _write_schema(field, block, address)
    block.hand_out()
    _move(address, out, 9)
    return 0


def _get_next(stream, out):
    owner = _stream_of(stream)
    try:
        array = next(owner.arrays, None)
        if array is None:
            _words(out)[8] = 0
        else:
            _move(array, out, 10)
    except Exception as error:
        owner.error = bytearray(repr(error).encode() + b"\0")
        return _EIO
    return 0


def _get_last_error(stream):
    return address_of(_stream_of(stream).error)


def _release_stream(stream):
    del _alive[_words(stream)[4]]
    _words(stream)[3] = 0


@cython.cfunc
def _release_of_arrays(otherwise) -> cython.longlong:
    """The address of ``_array_released`` in compiled code, where it is a C function, or ``otherwise``."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.size_t, cython.address(_array_released)))
    return otherwise


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
_RELEASE_ARRAY: cython.longlong = _release_of_arrays(_ENTRIES[0])
_RELEASE_SCHEMA: cython.longlong = _ENTRIES[1]

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, _pointer, ctypes.c_char_p, _pointer)(("PyCapsule_New", ctypes.pythonapi))
_pointer_in = ctypes.PYFUNCTYPE(_pointer, _pointer, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_capsules: dict = {}


def _forget(capsule):
    """The destructor of a capsule: release a stream that no consumer took, then free its memory."""
    address = _pointer_in(capsule, _CAPSULE)
    if _words(address)[3] != 0:
        _release_stream(address)
    del _capsules[address]


_FORGET = ctypes.PYFUNCTYPE(None, _pointer)(_forget)


def stream_capsule(field, arrays):
    """A capsule with an ArrowArrayStream of ``arrays``, an iterable of their addresses, which may raise."""
    memory = bytearray(40)
    address = address_of(memory)
    words: cython.p_longlong = _words(address)
    words[0], words[1], words[2], words[3] = _ENTRIES[2:]
    words[4] = address
    _alive[address] = _Stream(field, arrays, memory)
    _capsules[address] = memory
    return _new_capsule(address, _CAPSULE, ctypes.cast(_FORGET, _pointer))
