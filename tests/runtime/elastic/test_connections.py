from __future__ import annotations

import subprocess
import sys

# In a process of its own: it cuts every connection that there is.
CODE = """
import os, socket, tempfile, threading
from runtime.elastic.connections import cut_connections

listener = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listener.getsockname())
theirs, _ = listener.accept()
control, other = socket.socketpair()
found = []
waiting = threading.Thread(target=lambda: found.append(ours.recv(1)))
waiting.start()
assert cut_connections() == 2
waiting.join(20)
assert found == [b""], found
control.sendall(b"x")  # what the agent says still arrives
assert other.recv(1) == b"x"
again = socket.create_connection(listener.getsockname())  # and new groups can be formed
listener.accept()[0].sendall(b"y")
assert again.recv(1) == b"y"
log, pipe = tempfile.TemporaryFile(), os.pipe()
held = len(os.listdir("/proc/self/fd"))
for _ in range(300):  # it cuts ten times a second, for as long as a group does not come to an end
    cut_connections()
assert len(os.listdir("/proc/self/fd")) == held
"""


def test_a_wait_ends_the_control_channel_and_listeners_stay_and_no_descriptor_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
