"""Ctrl-C and SIGTERM: one sentence, the right exit code, at once, whatever the program is doing."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trajstitch.cli.signals import sentence

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")

# A program that is writing a folder, and in which every exception is lost.
STUBBORN = """
import sys, time
from trajstitch.cli.signals import watch
watch(["collect"])
from trajstitch.storage.atomic import replacing
with replacing(sys.argv[1] + "/made/x.traj") as part:
    part.mkdir()
    (part / "obs.npy").write_text("half")
    print("writing", flush=True)
    while True:
        try:
            time.sleep(30)
        except BaseException:
            pass
"""


def listening(pid: int) -> bool:
    """Whether the process catches SIGTERM, which Python alone does not."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)


def ended(process: subprocess.Popen, number: int) -> tuple[int, str]:
    """Send the signal; return exit code and what was said."""
    process.send_signal(number)
    _, error = process.communicate(timeout=20)
    return process.returncode, error


@pytest.fixture(autouse=True)
def signals_are_heard():
    """A shell ignores Ctrl-C in what it starts in its background, and that is inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_program_that_hears_no_exception_ends_and_leaves_nothing(number, code, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", STUBBORN, tmp_path], stdout=-1, stderr=-1, text=True)
    assert process.stdout.readline() == "writing\n"
    assert list(tmp_path.rglob("obs.npy"))
    by = " by SIGTERM" if number == signal.SIGTERM else ""
    assert ended(process, number) == (code, f"trajstitch: stopped{by}; nothing half-written is left\n")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("after", [0.0, 0.4])
def test_ctrl_c_while_the_program_starts(after, tmp_path):
    words = ["improve", "demo", "--out", str(tmp_path / "run")]
    process = subprocess.Popen([sys.executable, "-m", "trajstitch.cli", *words], stdout=-1, stderr=-1, text=True)
    while not listening(process.pid):
        time.sleep(0.001)
    time.sleep(after)
    assert ended(process, signal.SIGINT) == (130, "trajstitch: stopped; the same command goes on where it was\n")


def test_a_command_that_was_told_to_ignore_ctrl_c_ignores_it(tmp_path):
    """As after `nohup` or in the background of a script; SIGTERM still ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen([sys.executable, "-c", STUBBORN, tmp_path], stdout=-1, stderr=-1, text=True)
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    assert ended(process, signal.SIGTERM)[0] == 143


def test_only_commands_that_go_on_promise_it():
    assert sentence(signal.SIGTERM, ["train"]).endswith("the same command goes on where it was")
    assert sentence(signal.SIGTERM, ["convert"]).endswith("nothing half-written is left")
    assert sentence(signal.SIGINT, []) == "stopped; nothing half-written is left"
