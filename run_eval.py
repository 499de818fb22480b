"""Evaluate descriptors and write a report: the same as `kjax eval`.

python run_eval.py out/first rootsift
"""

import sys

from kjax.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "eval")
    sys.exit(main())
