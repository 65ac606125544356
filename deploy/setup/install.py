"""Makes .venv with the diagnoser command in it, and says how far it is.

It runs on Python 3.7 as well, so that one that is too old reads so in one line. Standard library only.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 13)
ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
REQUIREMENTS = ROOT / "requirements" / "dev.txt"
PIP = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
PINNED = ["--require-hashes", "--only-binary", ":all:", "--no-binary", "drain3", "--progress-bar", "off"]
QUIET_SECONDS = 15
"""Between two lines where nobody sits at a terminal."""


def main():
    why = unsupported(sys.version_info[:2])
    if why:
        raise SystemExit(why)
    run([sys.executable, "-m", "venv", str(ROOT / ".venv")])
    install_pinned()
    run([*PIP, "--quiet", "--no-build-isolation", "--editable", str(ROOT)])


def unsupported(version):
    """Say in one line why this Python will not do; "" where it does."""
    if OLDEST <= version <= NEWEST:
        return ""
    here = "{}.{}".format(*version)
    return f"diagnoser needs Python 3.11, 3.12 or 3.13, and this is {here}: call make with PYTHON=python3.11"


def install_pinned():
    packages = sum("==" in line and not line.startswith(" ") for line in REQUIREMENTS.read_text().splitlines())
    progress = Progress(packages)
    pip = subprocess.Popen([*PIP, *PINNED, "-r", str(REQUIREMENTS)], stdout=subprocess.PIPE, universal_newlines=True)
    threading.Thread(target=progress.show, daemon=True).start()
    for line in pip.stdout:
        progress.read(line)
    code = pip.wait()
    progress.end()
    if code:
        raise SystemExit(f"pip could not install the packages of {REQUIREMENTS}: its message is above")


class Progress:
    """One line that counts the packages as pip fetches them; on a terminal it is written over itself."""

    def __init__(self, packages):
        self.packages, self.fetched, self.stage = packages, 0, "fetching"
        self.start, self.terminal = time.monotonic(), sys.stderr.isatty()

    def read(self, line):
        if line.startswith(("Collecting ", "Processing ")):
            self.fetched += 1
        if line.startswith("Ignoring "):
            self.packages -= 1  # for another system
        if line.startswith("Installing collected"):
            self.stage = "unpacking"

    def show(self):
        while True:
            done, seconds = f"{self.fetched} of {self.packages}", time.monotonic() - self.start
            text = f"installing into .venv: {self.stage} {done} packages, {seconds:.0f} s (1 to 4 minutes in all)"
            sys.stderr.write("\r\033[K" + text if self.terminal else text + "\n")
            sys.stderr.flush()
            time.sleep(1 if self.terminal else QUIET_SECONDS)

    def end(self):
        if self.terminal:
            sys.stderr.write("\r\033[K")


def run(command):
    code = subprocess.call(command)
    if code:
        raise SystemExit("this command failed, its message is above: {}".format(" ".join(command)))


if __name__ == "__main__":
    main()
