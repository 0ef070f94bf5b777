"""``python -m cute_gemm`` is the ``cute-gemm`` command."""

import sys

from cute_gemm.commands.cli import main

sys.exit(main())
