"""The command line.

Owns the console script ``ottla``; each command group has its own module. Must not be imported by any other package. Invariant: an
``OttlaError`` becomes one line on stderr and exit code 1, a usage error exit code 2, both without a traceback.
"""

from __future__ import annotations

import signal
import sys

REQUIRED_MODULES = ("typer", "rich", "click")
INSTALL_COMMAND = 'pip install "ottla[cli]"'


def main() -> None:
    """Run the command in ``sys.argv`` and exit."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = 130
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in REQUIRED_MODULES:
            raise
        print(f"error: the command line needs {missing}: {INSTALL_COMMAND}", file=sys.stderr)
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C would make Python's finalization print a traceback
    sys.exit(code)


def _run() -> int:
    """Import and run the command. The imports are in here because Ctrl-C may interrupt any of them."""
    from ottla.cli.standard_streams import abandon_stdout, install

    try:
        install()
        from ottla.cli.app import run
        from ottla.cli.output import report_to_stderr

        report_to_stderr()
        return run(sys.argv[1:])
    except KeyboardInterrupt:
        abandon_stdout()
        raise


if __name__ == "__main__":
    main()
