"""Train a descriptor: the same as `kjax train`.

python run_train.py --config=configs/quickstart.py --workdir=out/first
"""

import sys

from kjax.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    sys.exit(main())
