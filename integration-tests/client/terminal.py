"""Drives `oasiskv chat` on a pseudo-terminal: typing, editing, history, ctrl-c, and what is left of the terminal.

Usage: terminal.py PROGRAM ARGUMENT...  Standard library only. Prints one line for each thing that was shown.
Deliberately no sleeps: it waits for text, up to a bound.
"""

import os
import pty
import select
import signal
import sys
import termios
import time

PATIENCE_S = 60


class Chat:
    def __init__(self, arguments):
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.environ["TERM"] = "xterm"
            os.execv(arguments[0], arguments)
        self.seen = ""
        self.modes = termios.tcgetattr(self.terminal)[3]

    def read(self, deadline):
        ready, _, _ = select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            raise SystemExit(f"waited in vain; the terminal shows:\n{self.seen}")
        try:
            piece = os.read(self.terminal, 4096)
        except OSError:  # Linux: the other end is closed.
            piece = b""
        self.seen += piece.decode(errors="replace")
        return piece

    def wait(self, text):
        """Waits for text, and forgets all up to its end."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            if not self.read(deadline):
                raise SystemExit(f"it ended without {text!r}; the terminal shows:\n{self.seen}")
        self.seen = self.seen.split(text, 1)[1]

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def ended(self):
        deadline = time.monotonic() + PATIENCE_S
        while self.read(deadline):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])

    def is_as_it_was(self):
        wanted = termios.ICANON | termios.ECHO | termios.ISIG
        return termios.tcgetattr(self.terminal)[3] & wanted == self.modes & wanted


def show(what, holds=True):
    if not holds:
        raise SystemExit(f"not so: {what}")
    print(what, flush=True)


UP, CTRL_C, CTRL_D, BACKSPACE = "\x1b[A", "\x03", "\x04", "\x7f"
# Bracketed paste on: once for each line that the editor begins, where ">>> " comes with every key.
PROMPT = "\x1b[?2004h"
arguments = sys.argv[1:]

chat = Chat(arguments)
chat.wait(PROMPT)
chat.type("What is the capital of Fraxx" + 2 * BACKSPACE + "nce?\r")
chat.wait("Paris")
chat.wait(PROMPT)
show("a line can be edited")
chat.type(UP + "\r")
chat.wait("Paris")
chat.wait(PROMPT)
show("a line can be called back")
chat.type("/set max_tokens 4000\r")
chat.wait(PROMPT)
chat.type("/clear\r")
chat.wait(PROMPT)
chat.type("List the names of all of the cities of France.\r")
chat.wait("\n")
# No letter of the spinner's or the editor's own sequences.
chat.wait("a")
chat.type(CTRL_C)
chat.wait("stopped")
chat.wait(PROMPT)
show("ctrl-c stops the answer and not the chat")
chat.type("half a line" + CTRL_C)
chat.wait("ctrl-c again leaves")
chat.wait(PROMPT)
chat.type(CTRL_C)
show("ctrl-c twice leaves", chat.ended() == 0)

chat = Chat(arguments)
chat.wait(PROMPT)
chat.type(CTRL_D)
show("ctrl-d leaves", chat.ended() == 0)

chat = Chat(arguments)
chat.wait(PROMPT)
# The modes of the terminal can be asked for only while somebody has it open.
keep = os.open(f"/proc/{chat.child}/fd/0", os.O_RDWR | os.O_NOCTTY)
os.kill(chat.child, signal.SIGTERM)
status = os.waitstatus_to_exitcode(os.waitpid(chat.child, 0)[1])
show("SIGTERM at the prompt leaves the terminal as it was", status == 0 and chat.is_as_it_was())
