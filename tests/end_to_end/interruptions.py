"""Counts the points of the package at which CPython may run a signal handler, and raises at one of them."""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

import ottla

PACKAGE = os.path.dirname(ottla.__file__)
OTHER_CODE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of code objects that are entered by a C function."""


class Point(NamedTuple):
    file: str
    function: str
    at: int
    kind: str


@functools.cache
def operations(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


class Interruptions:
    """Counts how often each point is passed, and raises at ``target`` the ``hit``-th time."""

    def __init__(self, target: Point | None = None, hit: int = 1, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.passed: Counter[Point] = Counter()
        self._error = error
        self.raised = False
        self._target, self._hit = target, hit
        self._called_at: dict[int, int | None] = {}

    def __enter__(self) -> Interruptions:
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(None)

    def _pass(self, code: CodeType, at: int, kind: str) -> None:
        point = Point(code.co_filename.removeprefix(PACKAGE), code.co_qualname, at, kind)
        self.passed[point] += 1
        if point == self._target and self.passed[point] == self._hit:
            sys.settrace(None)
            self.raised = True
            raise self._error(point)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code, caller = frame.f_code, frame.f_back
        if id(caller) in self._called_at and not code.co_flags & OTHER_CODE and code.co_name != "__init__":
            self._called_at[id(caller)] = None
        # An interruption of ``Records.__iter__`` concerns records that a poll has already returned.
        if not code.co_filename.startswith(PACKAGE) or code.co_qualname.startswith("Records.__iter__"):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._pass(code, frame.f_lineno, "entry")
        self._called_at[id(frame)] = None
        return self._on_step

    def _on_step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return":
            self._called_at.pop(id(frame), None)
        elif event == "opcode":
            operation = operations(frame.f_code).get(frame.f_lasti, "")
            called_at = self._called_at.get(id(frame))
            if called_at is not None:
                self._called_at[id(frame)] = None
                self._pass(frame.f_code, called_at, "after a call")
            if operation.startswith("JUMP_BACKWARD"):
                self._pass(frame.f_code, frame.f_lasti, "jump")
            elif operation in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
                self._called_at[id(frame)] = frame.f_lasti
        return self._on_step
