"""A host process of `worker_gpu`, which has the stand-ins of benchmarks."""

from __future__ import annotations

import sys

from pipeline.run.hosts import main

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
