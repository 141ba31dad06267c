"""moto's server, in which a write on a condition is one step, as on S3.

moto looks whether a name exists, and then writes, each request in a thread of its own: of two writers that create the
same name at the same time, both may be told that they did.
"""

from __future__ import annotations

import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_WRITING = threading.Lock()
_put_object = S3Response.put_object


def one_at_a_time(request: S3Response) -> Any:
    """Answer a request to write an object when no other one is being answered."""
    with _WRITING:
        return _put_object(request)


if __name__ == "__main__":
    S3Response.put_object = one_at_a_time
    main()
