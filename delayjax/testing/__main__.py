"""`python -m delayjax.testing my_module:tx --devices=8`."""

import sys

from delayjax._src.testing.command import main

sys.exit(main())
