"""`python -m kjax`, the same as the command `kjax`."""

import sys

from kjax.cli import main

sys.exit(main())
