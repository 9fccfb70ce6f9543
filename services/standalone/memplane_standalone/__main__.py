"""`python -m memplane_standalone` is `memplane`."""

import sys

from memplane_standalone.cli import main

if __name__ == "__main__":
    sys.exit(main())
