"""The command line.

Owns the console script ``ottla``; each noun has a file of its own in here. Must not be imported by any other package.
Invariant: an error that Ottla knows becomes one line on stderr and exit code 1, bad usage exit code 2, and neither
comes with a traceback.
"""

from __future__ import annotations

import signal
import sys

NEEDED = ("typer", "rich", "click", "confluent_kafka")
INSTALL = 'pip install "ottla[cli]"'


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = 130
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        print(f"error: the command line needs {missing}: {INSTALL}", file=sys.stderr)
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # if Ctrl-C came once more, the end of Python would print a traceback
    sys.exit(code)


def _run() -> int:
    """Imports happen in here: Ctrl-C may come during any of them."""
    from ottla.cli.streams import abandon_stdout, prepare

    try:
        prepare()
        from ottla.cli.app import run
        from ottla.cli.output import report_to_stderr

        report_to_stderr()
        return run(sys.argv[1:])
    except KeyboardInterrupt:
        abandon_stdout()
        raise


if __name__ == "__main__":
    main()
