"""The output of ``ottla broker check``.

Owns the lines of findings, the summary, and the progress bar. Must not know how a directory is checked. Invariants: findings go to
stdout, progress to stderr; Ctrl-C prints the findings so far.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ottla.broker.findings import Finding
from ottla.broker.scan import format_offsets
from ottla.broker.verify import PartitionCheck
from ottla.cli.options import Format
from ottla.cli.output import CommandFailed, pluralize, print_json, print_line
from ottla.runtime.check import StoppedDirectory
from ottla.runtime.repair import check_target, repair
from ottla.signals import Stop


def check_directory(path: Path, output: Format, stop: Stop, out: Path | None) -> None:
    """Check a data directory and print the findings; with ``out``, write a repaired copy there.

    Raises ``StorageError``, ``Interrupted``, and ``CommandFailed`` if there is damage and no repair.
    """
    directory = StoppedDirectory(path)
    checks: list[PartitionCheck] = []
    try:
        if out is not None:
            check_target(path, out)
        try:
            with _progress("checking", directory.size, stop) as advance:
                checks.extend(directory.check(advance))
        finally:
            _print(directory, checks, output, is_whole=not stop)
        wrong = [finding for finding in _all_findings(directory, checks) if finding.is_damage]
        if out is not None:
            if denied := directory.denied:
                raise CommandFailed(f"no permission to read {denied[0]}: run the repair as a user with this permission")
            with _progress("copying", sum(check.size for check in checks), stop) as advance:
                repair(directory, checks, out, advance)
            _print_summary(f"{_summary(path, checks, wrong)}. The repaired copy is {out}", output)
        elif wrong:
            sys.stdout.flush()
            raise CommandFailed(f"{_summary(path, checks, wrong)}. Use --repair to write a repaired copy")
        else:
            _print_summary(_summary(path, checks, wrong), output)
    finally:
        directory.release()


def _all_findings(directory: StoppedDirectory, checks: Sequence[PartitionCheck]) -> list[Finding]:
    return [*directory.findings, *(finding for check in checks for finding in check.findings)]


def _print(directory: StoppedDirectory, checks: Sequence[PartitionCheck], output: Format, *, is_whole: bool) -> None:
    findings = _all_findings(directory, checks)
    if output is Format.JSON:
        print_json(
            {
                "data_dir": str(directory.path),
                "complete": is_whole,
                "clean_shutdown": directory.clean,
                "partitions": len(checks),
                "batches": sum(check.batches for check in checks),
                "bytes": sum(check.size for check in checks),
                "findings": [_row(finding) for finding in findings],
            }
        )
        return
    for finding in findings:
        print_line(f"{'damage' if finding.is_damage else 'note'}: {_where(finding)}: {finding.what}")
        print_line(f"  next start: {finding.at_start}")
        print_line(f"  repair: {finding.at_repair}")


def _row(finding: Finding) -> dict[str, Any]:
    topic, partition = finding.topic_partition or (None, None)
    return {
        "kind": finding.kind.value,
        "is_damage": finding.is_damage,
        "topic": topic,
        "partition": partition,
        "file": finding.file,
        "position": finding.position,
        "bytes": finding.size,
        "first_offset": finding.first_offset,
        "next_offset": finding.next_offset,
        "what": finding.what,
        "next_start": finding.at_start,
        "repair": finding.at_repair,
    }


def _where(finding: Finding) -> str:
    """Return the file's path in the data directory, with position, size and offsets if they are known."""
    parts = []
    if finding.topic_partition is None:
        parts.append(finding.file)
    else:
        directory = f"{finding.topic_partition.topic}-{finding.topic_partition.partition}"
        parts.append(directory if finding.file in (".", directory) else f"{directory}/{finding.file}")
    if finding.position is not None:
        parts.append(f"byte {finding.position}")
    if finding.size is not None:
        parts.append(pluralize(finding.size, "byte"))
    if finding.first_offset is not None:
        first, end = finding.first_offset, finding.next_offset
        parts.append(format_offsets(first, end) if end is not None else f"from offset {first} on")
    return ", ".join(parts)


def _summary(path: Path, checks: Sequence[PartitionCheck], wrong: Sequence[Finding]) -> str:
    batches, size = sum(check.batches for check in checks), sum(check.size for check in checks)
    read = (
        f"{pluralize(len(checks), 'partition')} with {batches:,} intact {'batch' if batches == 1 else 'batches'} ({size:,} bytes)"
    )
    if not wrong:
        return f"{path}: nothing is wrong in {read}"
    verb = "thing is" if len(wrong) == 1 else "things are"
    return f"{path}: {len(wrong)} {verb} wrong; {read}"


def _print_summary(summary: str, output: Format) -> None:
    """Print the last line; not with JSON, because stdout is one document then."""
    if output is Format.TABLE:
        print_line(summary)


@contextmanager
def _progress(title: str, total: int, stop: Stop) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal. Yields a function that adds processed bytes, and raises ``Interrupted`` after a signal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task(title, total=total)

    def advance(size: int) -> None:
        stop.check()
        bar.advance(task, size)

    with bar if console.is_terminal else nullcontext():
        yield advance
        stop.check()
