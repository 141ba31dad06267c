"""A clock that is off by the seconds in the file `PIPELINE_TEST_CLOCK`, for each Python with this folder in PYTHONPATH.

`time.time`, `time.time_ns` and the present times of `datetime` follow the file from call to call, as after a person or
NTP has set the clock. `time.monotonic` and the times of files stay right, as they do then. The methods of `datetime`
are replaced in the class itself, because a subclass in its place is not what compiled modules (pandas) expect.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import os
import time
from pathlib import Path

_file = Path(os.environ["PIPELINE_TEST_CLOCK"])
_time, _time_ns = time.time, time.time_ns


def _offset() -> int:
    return int(_file.read_text("ascii"))


def _now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
    return cls.fromtimestamp(time.time(), tz)


def _utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
    return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)


time.time = lambda: _time() + _offset()
time.time_ns = lambda: _time_ns() + _offset() * 1_000_000_000
(_methods,) = gc.get_referents(datetime.datetime.__dict__)  # of the class, which is read-only otherwise
_methods |= {"now": classmethod(_now), "utcnow": classmethod(_utcnow), "today": classmethod(_now)}
ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
