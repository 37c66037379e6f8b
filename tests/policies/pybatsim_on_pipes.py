"""A scheduler of pybatsim on pipes: python pybatsim_on_pipes.py FOLDER NAME, FOLDER being where it is installed."""

import json
import logging
import os
import sys
import tempfile
import types

sys.path.insert(0, sys.argv[1])
sys.modules["zmq"] = types.SimpleNamespace(REP=0, PUB=0)
logging.disable(logging.ERROR)
from batsim import batsim  # noqa: E402
from batsim.tools.launcher import instanciate_scheduler  # noqa: E402

lines, answers, sys.stdout = sys.stdin, sys.stdout, sys.stderr


class Pipes:
    def __init__(self, *_, **__):
        pass

    def bind(self):
        pass

    close = bind

    def recv(self, blocking=False):
        return json.loads(lines.readline())

    def send(self, message):
        print(json.dumps(message), file=answers, flush=True)


batsim.NetworkHandler = Pipes
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)  # it writes out_events.csv to where it runs
    batsim.Batsim(instanciate_scheduler(sys.argv[2], {}), "", None).start()
