"""The command, as `python -m shardwright` and as the script that pip installs."""

from __future__ import annotations

import signal
import sys

from . import _native


def main() -> int:
    # Python would only note ctrl-C until the answer is there.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
