"""Load the shared library of this folder, once a process.

``LAKEBED_NATIVE=off`` does without it, as where it was not built. A log line at debug says which way ingest goes.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys

from lakebed.decode.native.build import LIBRARY

VERSION = 9
"""What ``lakebed_native_version`` must return: raised with every change of what a C function takes or returns."""
DONE, UNSURE, NO_MEMORY, TOO_LARGE = 0, 1, -1, -2
INTEGER, FLOATING, BOOLEAN, TEXT, DECIMAL, LIST, STRUCT, BYTES, MAP = range(1, 10)
"""``enum kind`` of arrow_columns.h."""

_logger = logging.getLogger("lakebed.ingest")


class Field(ctypes.Structure):
    """``struct field`` of arrow_columns.h."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("precision", ctypes.c_int32),
        ("scale", ctypes.c_int32),
        ("first_child", ctypes.c_int32),
        ("children", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("name_length", ctypes.c_int32),
        ("watched", ctypes.c_int32),
    ]


class ArrowArray(ctypes.Structure):
    """``struct ArrowArray`` of Arrow's C data interface."""

    _fields_ = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


class Unknown(ctypes.Structure):
    """``struct unknown`` of json_to_arrow.c."""

    _fields_ = [("name", ctypes.c_void_p), ("length", ctypes.c_int64), ("node", ctypes.c_int64)]


class Skipped(ctypes.Structure):
    """``struct skipped`` of json_to_arrow.c."""

    _fields_ = [("name", ctypes.c_char_p), ("length", ctypes.c_int32), ("node", ctypes.c_int32)]


class Lower(ctypes.Structure):
    """``struct lower`` of json_to_arrow.c."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("length", ctypes.c_int32),
        ("node", ctypes.c_int32),
        ("is_read", ctypes.c_int32),
    ]


class Task(ctypes.Structure):
    """``struct task`` of json_to_arrow.c."""

    _fields_ = [
        ("fields", ctypes.c_void_p),
        ("skipped", ctypes.c_void_p),
        ("lower", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("sure", ctypes.c_void_p),
        ("met", ctypes.c_void_p),
        ("unknown", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("field_count", ctypes.c_int32),
        ("skipped_count", ctypes.c_int32),
        ("lower_count", ctypes.c_int32),
        ("unknown_count", ctypes.c_int32),
    ]


class ProtobufMember(ctypes.Structure):
    """``struct member`` of protobuf_to_arrow.c."""

    _fields_ = [
        ("number", ctypes.c_uint32),
        ("encoding", ctypes.c_int32),
        ("absence", ctypes.c_int32),
        ("oneof", ctypes.c_int32),
        ("nodes", ctypes.c_int32),
    ]


class ProtobufTask(ctypes.Structure):
    """``struct task`` of protobuf_to_arrow.c."""

    _fields_ = [
        ("fields", ctypes.c_void_p),
        ("members", ctypes.c_void_p),
        ("by_number", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("outcome", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("field_count", ctypes.c_int32),
    ]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None where it is off, not built, or of another version than this code."""
    if os.environ.get("LAKEBED_NATIVE") == "off" or sys.byteorder != "little":
        _logger.debug("native ingest is off: JSON is read by Arrow's parser")
        return None
    try:
        found = ctypes.CDLL(str(LIBRARY))
        if found.lakebed_native_version() != VERSION:
            raise OSError(f"{LIBRARY.name} is of another version; build it again")
    except (OSError, AttributeError) as error:
        _logger.debug("no native ingest, JSON is read by Arrow's parser: %s", error)
        return None
    found.lakebed_read_json.argtypes = [ctypes.POINTER(Task), ctypes.POINTER(ArrowArray)]
    found.lakebed_read_protobuf.argtypes = [ctypes.POINTER(ProtobufTask), ctypes.POINTER(ArrowArray)]
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    names = ctypes.POINTER(ctypes.c_char_p)
    found.lakebed_range_open.argtypes = [pointer, ctypes.c_char_p, ctypes.c_int32, *[number] * 4, names]
    found.lakebed_range_open.restype = pointer
    found.lakebed_range_read.argtypes = [pointer, ctypes.c_int, ctypes.POINTER(number), ctypes.POINTER(number)]
    found.lakebed_range_take.argtypes = [pointer, ctypes.POINTER(ArrowArray)]
    found.lakebed_range_take_headers.argtypes = [pointer, ctypes.POINTER(ArrowArray), ctypes.POINTER(ctypes.c_int)]
    found.lakebed_range_close.argtypes, found.lakebed_range_close.restype = [pointer], None
    _logger.debug("native ingest: %s", LIBRARY)
    return found
