"""Signals: Ctrl-C and SIGTERM end the program at once, with one sentence, whatever it is doing.

An exception raised by a signal can be lost in a library, or wait for minutes until a compiled function returns. So
a thread hears of the signal from the operating system, removes what is half written, and ends the process. Nothing
else needs to be put in order: files appear whole, and the system releases locks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

# Commands that continue what they began when they are called again.
_RESUMABLE = ("improve", "weigh", "train", "evaluate", "demo")


def watch(arguments: list[str]) -> None:
    """End at once on Ctrl-C and SIGTERM from now on; `arguments` are those of the command line."""
    if sys.platform == "win32":
        return  # which has other signals; there Ctrl-C raises KeyboardInterrupt as usual
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as after nohup or in the background of a script
            signal.signal(number, lambda number, frame: None)
    threading.Thread(target=_listen, args=(read, arguments), daemon=True).start()  # a signal waits in the pipe


def _listen(read: int, arguments: list[str]) -> None:
    while (number := os.read(read, 1)[0]) not in (signal.SIGINT, signal.SIGTERM):
        pass
    _remove_parts()
    text = f"trajstitch: {sentence(number, arguments)}\n"
    if os.isatty(2):
        text = "\r\x1b[K\x1b[?25h" + text  # take away a progress bar, and show the cursor again
    with suppress(OSError):
        os.write(2, text.encode())
    os._exit(128 + number)


def sentence(number: int, arguments: list[str]) -> str:
    """Return what is said when this signal ends a command."""
    what = "stopped by SIGTERM" if number == signal.SIGTERM else "stopped"
    if arguments and arguments[0] in _RESUMABLE:
        return f"{what}; the same command goes on where it was"
    return f"{what}; nothing half-written is left"


def _remove_parts() -> None:
    """Remove what is being written, but let a rename that has begun end first."""
    atomic = sys.modules.get("trajstitch.storage.atomic")  # nothing is half written before this module is there
    with suppress(Exception):  # whatever happens, the process ends
        getattr(atomic, "stop_writing", lambda: None)()
