"""The commands that read history, and those that keep it: registered together."""

from __future__ import annotations

from cyclopts import App

from rollbook.adapters.cli import archives, diff, explain, replay, timeline


def register(commands: App) -> None:
    """Add them to the program."""
    commands.command(explain.explain, help_epilogue=explain.EXAMPLE)
    commands.command(diff.diff, help_epilogue=diff.EXAMPLE)
    commands.command(replay.replay, help_epilogue=replay.EXAMPLE)
    commands.command(timeline.timeline, help_epilogue=timeline.EXAMPLE)
    commands.command(archives.export, help_epilogue=archives.EXPORT_EXAMPLE)
    commands.command(archives.import_, name="import", help_epilogue=archives.IMPORT_EXAMPLE)
    commands.command(archives.archive, help_epilogue=archives.ARCHIVE_EXAMPLE)
