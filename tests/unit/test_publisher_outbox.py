"""The durable outbox's file. Guards I8: what is said to be on the disk is there for the next process."""

import os
import sqlite3
import threading

import pytest
from structlog.testing import capture_logs
from support.process import run_python

from rollbook.adapters.publisher import OutboxInUse, OutboxUnusable
from rollbook.adapters.publisher.outbox import DurableOutbox, Row

SOON = 30


def row(key: int, payload: bytes | None = b"{}") -> Row:
    return Row(key, f"id-{key}", "rollbook.f.worker.w", "WorkerUp about w", 0, payload)


def save(outbox: DurableOutbox, *rows: Row) -> None:
    saved = [threading.Event() for _ in rows]
    for one, event in zip(rows, saved, strict=True):
        outbox.save(one, event.set)
    assert all(event.wait(SOON) for event in saved)


def reopened(path) -> list[Row]:
    outbox = DurableOutbox(path)
    outbox.close()
    return outbox.rows


def test_what_is_saved_is_there_in_order(tmp_path):
    outbox = DurableOutbox(tmp_path / "o")
    assert outbox.rows == []
    save(outbox, row(2), row(1), row(3, None))
    outbox.close()
    assert reopened(tmp_path / "o") == [row(1), row(2), row(3, None)]


def test_what_is_forgotten_is_gone(tmp_path):
    outbox = DurableOutbox(tmp_path / "o")
    save(outbox, row(1), row(2))
    outbox.forget(1)
    outbox.save(row(4), None)
    outbox.forget(4)  # possibly before it was ever written
    outbox.close()
    assert reopened(tmp_path / "o") == [row(2)]


def test_a_later_version_takes_the_place(tmp_path):
    outbox = DurableOutbox(tmp_path / "o")
    save(outbox, row(1, None))
    save(outbox, row(1, b"numbered"))
    outbox.close()
    assert reopened(tmp_path / "o") == [row(1, b"numbered")]


def test_two_at_once_is_an_error(tmp_path):
    outbox = DurableOutbox(tmp_path / "o")
    with pytest.raises(OutboxInUse, match="every publisher needs a file of its own"):
        DurableOutbox(tmp_path / "o")
    code = f"""
        from rollbook.adapters.publisher.outbox import DurableOutbox
        DurableOutbox({str(tmp_path / "o")!r})
    """
    other = run_python(code, check=False)
    assert other.returncode == 1
    assert "OutboxInUse" in other.stderr
    save(outbox, row(1))
    outbox.close()
    assert reopened(tmp_path / "o") == [row(1)]


def test_not_an_outbox(tmp_path):
    (tmp_path / "text").write_text("not a database " * 100)
    with pytest.raises(OutboxUnusable, match="file is not a database"):
        DurableOutbox(tmp_path / "text")
    with sqlite3.connect(tmp_path / "theirs") as theirs:
        theirs.execute("CREATE TABLE precious (a)")
    theirs.close()
    with pytest.raises(OutboxUnusable, match="another program's file"):
        DurableOutbox(tmp_path / "theirs")
    with pytest.raises(OutboxUnusable, match="unable to open"):
        DurableOutbox(tmp_path / "no such folder" / "o")


def test_a_full_disk_is_told_and_overcome(tmp_path):
    """The disk's limit is this process's file size limit: writing beyond it fails as on a full disk."""
    code = f"""
        import resource, threading, time
        from structlog.testing import capture_logs
        from rollbook.adapters.publisher.outbox import DurableOutbox, Row

        outbox = DurableOutbox({str(tmp_path / "o")!r})
        events = [threading.Event() for _ in range(3)]
        def save(key, size):
            outbox.save(Row(key, f"id-{{key}}", "rollbook.f.worker.w", "w", 0, b"x" * size), events[key].set)
        save(0, 10)
        assert events[0].wait({SOON})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with capture_logs() as logs:
            save(1, 200_000)
            save(2, 10)
            while outbox.error is None:
                time.sleep(0.01)
            assert not events[1].wait(1.5)
            assert not events[2].is_set()
        assert [entry["event"] for entry in logs] == ["publisher.outbox.not_written"], logs
        assert "waiting facts are only in memory" in outbox.error
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert events[1].wait({SOON}) and events[2].wait({SOON})
        outbox.close()
        assert outbox.error is None
    """
    run_python(code)
    assert [one.key for one in reopened(tmp_path / "o")] == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_touch_the_file(tmp_path):
    """The child ends in the ordinary way, with everything closed, while the parent writes on."""
    code = f"""
        import os, sys, threading
        from rollbook.adapters.publisher.outbox import DurableOutbox, Row

        outbox = DurableOutbox({str(tmp_path / "o")!r})
        def save(key):
            event = threading.Event()
            outbox.save(Row(key, f"id-{{key}}", "rollbook.f.worker.w", "w", 0, b"x"), event.set)
            assert event.wait({SOON})
        save(1)
        child = os.fork()
        if not child:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        save(2)
        os._exit(0)  # as if killed
    """
    run_python(code)
    assert [one.key for one in reopened(tmp_path / "o")] == [1, 2]


def test_closing_writes_what_is_left(tmp_path):
    outbox = DurableOutbox(tmp_path / "o")
    for key in range(1, 200):
        outbox.save(row(key), None)
    outbox.close()
    assert [one.key for one in reopened(tmp_path / "o")] == list(range(1, 200))


def test_trouble_is_logged_once(tmp_path, monkeypatch):
    from rollbook.adapters.publisher import outbox as module

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(module, "_RETRY", 0.01)
    monkeypatch.setattr(module, "_write", fail)
    with capture_logs() as logs:
        outbox = DurableOutbox(tmp_path / "o")
        for key in range(5):
            outbox.save(row(key), None)
        outbox.close()
    assert [entry["event"] for entry in logs] == ["publisher.outbox.not_written"]
    assert "disk is full" in str(outbox.error)


def test_a_path_that_is_none_is_told():
    with pytest.raises(OutboxUnusable, match="cannot be used: embedded null"):
        DurableOutbox("a\0b")


def test_the_file_is_let_go_of_where_no_publisher_can_be_made(tmp_path):
    """A process with no descriptor left for the publisher's loop has some a moment later."""
    code = f"""
        import os, resource
        from rollbook.adapters.publisher import OutboxUnusable, Publisher

        def make():
            return Publisher("f", "nats://127.0.0.1:1", outbox={str(tmp_path / "o")!r})

        make().close(timeout=0)  # everything is imported
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
        held = []
        while len(held) < 60:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        refused = []
        for descriptor in held:
            os.close(descriptor)
            try:
                make().close(timeout=0)
                break
            except (OutboxUnusable, OSError) as exc:
                refused.append(type(exc))
        assert refused[0] is OutboxUnusable, refused  # none for the file
        assert OSError in refused, refused  # none for the loop
    """
    run_python(code)
