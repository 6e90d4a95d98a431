"""UUIDv7: the time in it, threads, a clock that steps back, and forked children."""

import os
import threading
import uuid

from rollbook.adapters.ids import UuidV7


def test_has_version_variant_and_time():
    ids = UuidV7(clock=lambda: 0x0123_4567_89AB * 1_000_000 + 999_999)
    parsed = uuid.UUID(ids.new())
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == 0x0123_4567_89AB


def test_rises_when_the_clock_steps_back():
    now = iter([5_000_000_000, 4_000_000_000, 4_000_000_001, 6_000_000_000])
    ids = UuidV7(clock=lambda: next(now))
    made = [ids.new() for _ in range(4)]
    assert made == sorted(made)
    assert len(set(made)) == 4


def test_carries_into_the_next_millisecond_when_the_counter_is_full():
    ids = UuidV7(clock=lambda: 1_000_000)
    ids.new()
    ids._tail = (1 << 74) - 1
    parsed = uuid.UUID(ids.new())
    assert parsed.int >> 80 == 2
    assert parsed.version == 7


def test_is_unique_across_threads():
    ids = UuidV7()
    found: list[list[str]] = []

    def make():
        found.append([ids.new() for _ in range(5_000)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [one for chunk in found for one in chunk]
    assert len(set(everything)) == 20_000
    assert all(chunk == sorted(chunk) for chunk in found)


def test_a_forked_child_draws_its_own_randomness_and_is_not_blocked_by_a_held_lock():
    ids = UuidV7(clock=lambda: 1_000_000)
    ids.new()
    read, write = os.pipe()
    with ids._lock:
        pid = os.fork()
        if pid == 0:
            os.write(write, ids.new().encode())
            os._exit(0)
    os.close(write)
    child = os.read(read, 100).decode()
    os.close(read)
    assert os.waitpid(pid, 0)[1] == 0
    assert uuid.UUID(child).version == 7
    assert child != ids.new()
