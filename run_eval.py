"""Evaluates descriptors and writes a report: `python run_eval.py out/first rootsift`.

SOURCE is a workdir of run_train.py, shipped weights (`kjax info` lists them), a weights file
(`weights.npz:xy,s=1`), a rival's name, or a folder of descriptors as official HPatches CSV files.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from kjax.errors import exit_code
from kjax.interrupts import ending_on_interrupt, run_program

INTERRUPTED = "run_eval: interrupted; what has been described is kept"

EXAMPLES = """examples:
  python run_eval.py out/first rootsift sift mkd
      on the test sets of the run; the report goes to out/first/evaluation/report.html
  python run_eval.py out/lib out/not out/yos --phototour data/liberty data/notredame data/yosemite
      the paper's table: every run is tested on the sets that it was not trained on
  python run_eval.py out/lib tfeat --weights tfeat=tfeat-liberty.params \\
      --hpatches data/hpatches-release --splits a b c --tasks data/tasks --protocols python matlab
"""


def main(argv: Sequence[str]) -> int:
    """Runs the evaluation; bad input is one line on stderr and exit code 2."""
    args = make_parser().parse_args(argv[1:])
    with ending_on_interrupt(INTERRUPTED):
        from kjax.eval.arguments import evaluate

    return exit_code("run_eval", lambda: evaluate(args, command=shlex.join(["python", *argv])))


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="run_eval.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("sources", nargs="+", metavar="SOURCE", help="what to evaluate, in the tables' order")
    add("--out", type=Path, help="folder of the report (default: evaluation/ in the first workdir)")
    add("--phototour", nargs="*", metavar="SET", help="folders, or embedded (default: the runs')")
    add("--rule", default="hardnet", help="of FPR@95: hardnet (default) or hynet")
    add("--hpatches", type=Path, metavar="FOLDER", help="sequences in HPatches' format")
    add("--splits", nargs="+", default=[], help="a b c full illum view (default: all sequences)")
    add("--tasks", type=Path, metavar="FOLDER", help="official task files (default: generated)")
    add("--protocols", nargs="+", default=["python"], help="python (default), matlab")
    add("--weights", nargs="+", default=[], metavar="RIVAL=FILE", help="files of learned rivals")
    add("--title", default="Evaluation of local descriptors")
    add("--cache-dir", type=Path, help="of descriptors (default: $KJAX_CACHE or ~/.cache/kjax)")
    add("--quiet", action="store_true", help="no progress bars")
    return parser


if __name__ == "__main__":
    run_program(main, INTERRUPTED)
