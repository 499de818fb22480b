"""One of two processes, of which VICTIM is killed: `left_alone.py COORDINATOR PROCESS VICTIM`.

The other one is left waiting for it.
"""

import os
import signal
import sys

from kjax.train import command_line

command_line.HEARTBEAT_SECONDS = 4  # a test cannot wait as long as a training
coordinator, process, victim = sys.argv[1:]
command_line.join(coordinator, 2, int(process))

from kjax.runs.processes import any_process  # noqa: E402  (after joining, as in run_train.py)

with command_line.ending_when_alone():
    any_process(False)
    if process == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    any_process(False)
