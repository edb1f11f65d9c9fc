"""python -m mm3d: the command line."""

import sys

from mm3d.cli import main

sys.exit(main())
