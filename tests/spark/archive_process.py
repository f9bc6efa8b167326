"""Archives a directory in small steps until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

from heliograph.spark.archive import steps
from tests.spark.archiving import archive, write_here

if __name__ == "__main__":
    steps.write = write_here
    print("archiving", flush=True)
    while True:
        archive(Path(sys.argv[1]), step_bytes=8192, file_bytes=4096)
