"""The disk tier by example, and against a model: all prefixes written, and of each token the bytes it must have."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.errors import ArgumentError
from palmette.radix_cache import DiskTier, block_file, disk_writer, shelf

WIDTH = 24
BLOCK = 8


def kv(tokens, namespace: str = "") -> np.ndarray:
    """What a model would compute: of each token bytes that depend on all tokens up to it. uint8[n, WIDTH]."""
    state, rows = blake2b(namespace.encode("utf-8", "surrogatepass"), digest_size=WIDTH), []
    for token in tokens:
        state.update(int(token).to_bytes(4, "little"))
        rows.append(np.frombuffer(state.digest(), dtype=np.uint8))
    return np.array(rows, dtype=np.uint8).reshape(-1, WIDTH)


def make(folder, **settings) -> DiskTier:
    return DiskTier(
        folder,
        **{"fingerprint": "model-fp16", "bytes_per_token": WIDTH, "max_bytes": 1 << 20, "block": BLOCK, **settings},
    )


def put(tier: DiskTier, tokens, namespace: str = "") -> int:
    taken = tier.write(tokens, namespace, kv(tokens, namespace))
    assert tier.flush(20)
    return taken


def holds(tier: DiskTier, tokens, namespace: str = "") -> int:
    """How many tokens are found; whatever is read of them must be right."""
    found = tier.find(tokens, namespace)
    rows = tier.read(tokens, namespace, 0, found)
    if rows is None:
        return 0
    assert np.array_equal(rows, kv(tokens[:found], namespace))
    return found


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def names(tier: DiskTier) -> dict[int, Path]:
    """The files by the position of their first token."""
    return {int(path.stem.split("-")[2]): path for path in files(tier.folder)}


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


# --- round trip ---


def test_what_was_written_is_found_by_the_next_process_and_no_more(tmp_path):
    tokens = list(range(100, 121))
    with make(tmp_path) as tier:
        assert tier.find(tokens) == 0 and tier.read(tokens, "", 0, 1) is None
        assert put(tier, tokens) == 21
        assert holds(tier, tokens) == 21
    tier = make(tmp_path)
    assert holds(tier, tokens) == 21
    assert holds(tier, [*tokens, 7, 7]) == 21
    assert holds(tier, [*tokens[:12], 7, 7]) == 12
    assert holds(tier, [7]) == holds(tier, []) == 0
    assert tier.read(tokens, "", 5, 18).tolist() == kv(tokens)[5:18].tolist()
    assert tier.read(tokens, "", 3, 3).shape == (0, WIDTH)
    assert tier.read([*tokens, 7], "", 0, 22) is None
    with pytest.raises(ValueError, match="no tokens from 0 to 22 in 21"):
        tier.read(tokens, "", 0, 22)


def test_a_prompt_of_any_length_is_found_again_to_the_token(tmp_path):
    """Asked for as a scheduler does, without the last token, after the prompt went in with its output."""
    tier = make(tmp_path)
    for n in range(1, 3 * BLOCK + 2):
        prompt = [n] * n
        put(tier, [*prompt, 1000, 1001, 1002])
        again = make(tmp_path)
        assert holds(again, prompt[:-1]) == n - 1
        assert holds(again, prompt) == n


def test_only_what_is_missing_is_asked_for(tmp_path):
    tier, asked = make(tmp_path), []
    tokens = list(range(20))

    def rows(start: int, end: int) -> np.ndarray:
        asked.append((start, end))
        return kv(tokens)[start:end]

    assert tier.missing(tokens[:12]) == [(0, 8), (8, 12)]
    assert tier.write(tokens[:12], "", rows) == 12 and tier.flush(20)
    assert asked == [(0, 8), (8, 12)] and tier.missing(tokens[:12]) == []
    asked.clear()
    # The block that was short is written anew, longer, and takes the place of the short one.
    assert tier.missing(tokens) == [(8, 16), (16, 20)]
    assert tier.write(tokens, "", rows) == 12 and tier.flush(20)
    assert asked == [(8, 16), (16, 20)]
    assert sorted(names(tier)) == [0, 8, 16] and len(files(tmp_path)) == 3
    asked.clear()
    # A beginning of a stored block is stored.
    for n in range(21):
        assert tier.missing(tokens[:n]) == [] and tier.write(tokens[:n], "", rows) == 0
    assert asked == [] and holds(tier, tokens) == 20


def test_rows_of_the_end_alone(tmp_path):
    tokens = list(range(20))
    tier = make(tmp_path)
    put(tier, tokens[:8])
    # From 8 on, with the first block stored: all of it. From 9 on: a gap, so nothing after it would be found.
    assert tier.write(tokens, "", kv(tokens)[9:], 9) == 0
    assert tier.write(tokens, "", kv(tokens)[8:], 8) == 12
    assert tier.flush(20) and holds(make(tmp_path), tokens) == 20
    # Too few rows: as far as they go by whole blocks.
    other = [*tokens[:8], *range(50, 70)]
    assert tier.write(other, "", kv(other)[8:20], 8) == 8
    assert tier.flush(20) and holds(make(tmp_path), other) == 16


def test_rows_are_taken_as_they_are_now(tmp_path):
    tier, tokens = make(tmp_path), list(range(10))
    rows = kv(tokens)
    tier.write(tokens, "", rows)
    rows[:] = 0
    assert tier.flush(20) and holds(tier, tokens) == 10


def test_rows_of_another_shape_are_refused_and_nothing_waits(tmp_path):
    tier = make(tmp_path)
    for rows in (np.zeros((8, WIDTH + 1), np.uint8), np.zeros((8, WIDTH), np.int8), np.zeros((8, WIDTH, 1), np.uint8)):
        with pytest.raises(ValueError, match=r"rows must be uint8\[8, 24\], not"):
            tier.write(list(range(8)), "", rows)
    with pytest.raises(ZeroDivisionError):
        tier.write(list(range(8)), "", lambda start, end: 1 // 0)
    assert tier.flush(0) and tier.missing(list(range(8))) == [(0, 8)]


def test_namespaces_and_fingerprints_find_nothing_of_each_other(tmp_path):
    tokens = list(range(20))
    a = make(tmp_path)
    put(a, tokens, "a")
    assert [holds(a, tokens, name) for name in ("a", "b", "", "a\0", "\ud800")] == [20, 0, 0, 0, 0]
    b = make(tmp_path, fingerprint="model-fp32")
    assert holds(b, tokens, "a") == 0
    put(b, tokens, "")
    assert holds(make(tmp_path, fingerprint="model-fp32"), tokens) == 20
    assert [holds(make(tmp_path), tokens, name) for name in ("a", "")] == [20, 0]


def test_a_file_under_another_name_is_no_hit(tmp_path):
    """Not of another namespace, another place, another fingerprint or another width."""
    tier, tokens = make(tmp_path), [5] * 16
    put(tier, tokens, "a")
    put(tier, tokens, "b")
    root = block_file.root_key(tier.kind, "a")
    mine = next(path for path in files(tmp_path) if path.name.startswith(root.hex()))
    for other in files(tmp_path):
        if other != mine:
            mine.write_bytes(other.read_bytes())
            fresh = make(tmp_path)
            assert fresh.find(tokens, "a") > 0
            assert fresh.read(tokens, "a", 0, 8) is None
            assert fresh.stats.corrupt == 1 and not mine.exists()
    wide = make(tmp_path, bytes_per_token=WIDTH // 2)
    assert wide.find(tokens, "b") > 0 and wide.read(tokens, "b", 0, 16) is None


def test_prompts_are_for_the_user_alone(tmp_path):
    put(make(tmp_path / "new" / "cache"), list(range(9)))
    inside = [path for path in (tmp_path / "new" / "cache").rglob("*")]
    assert len(inside) >= 4
    for path in [tmp_path / "new" / "cache", *inside]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "-a", "a" * 121, "ä", "a\n"])
def test_a_fingerprint_that_is_no_folder_s_name_is_refused(tmp_path, name):
    with pytest.raises(ArgumentError, match="cannot name a folder"):
        make(tmp_path, fingerprint=name)


def test_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ArgumentError, match="is no folder"):
            make(path)
    with pytest.raises(ArgumentError, match="max_bytes must be at least 1"):
        make(tmp_path, max_bytes=0)


def test_keys_and_lookups_of_4000_tokens_are_quick(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50_000, 4_000, dtype=np.int32)
    tier = DiskTier(tmp_path, fingerprint="f", bytes_per_token=1, max_bytes=1 << 24)
    times = {"missing": 1.0, "find": 1.0}
    tier.write(tokens, "", np.zeros((4_000, 1), np.uint8))
    assert tier.flush(20) and tier.find(tokens) == 4_000
    for _ in range(9):
        for what in times:
            start = time.perf_counter()
            getattr(tier, what)(tokens)
            times[what] = min(times[what], time.perf_counter() - start)
    assert max(times.values()) < 0.002


# --- against a model ---

# Few and alike, so that prefixes part inside blocks, at their ends, and not at all.
TOKENS = st.lists(st.sampled_from([(0,), (1,), (0, 1, 0), (1, 1, 0, 0, 1)]), max_size=7).map(lambda s: sum(s, ()))
NAMESPACES = st.sampled_from(["", "a"])
PREFIXES = st.tuples(NAMESPACES, TOKENS)
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def common(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@quick
@given(steps=st.lists(st.tuples(PREFIXES, st.booleans()), max_size=12), asked=st.lists(PREFIXES, max_size=12))
def test_the_longest_prefix_is_found_of_all_that_was_ever_written(tmp_path_factory, steps, asked):
    folder = tmp_path_factory.mktemp("tier")
    tiers, written = [make(folder, block=4), make(folder, block=4)], []
    for (namespace, tokens), which in steps:
        put(tiers[which], tokens, namespace)
        written.append((namespace, tokens))
        assert all(tier.missing(tokens, namespace) == [] for tier in tiers)
    for namespace, tokens in [*asked, *written]:
        longest = max((common(tokens, other) for name, other in written if name == namespace), default=0)
        for tier in [*tiers, make(folder, block=4)]:
            assert holds(tier, tokens, namespace) == longest
    assert all(tier.stats.corrupt == tier.stats.dropped_tokens == 0 for tier in tiers)


# --- files that are wrong ---

WRITTEN = [("", (*range(11),)), ("", (*range(8), 50, 51)), ("a", (*range(11),)), ("", (9,) * 17)]
HEAD, IDS = block_file._HEADER.size, block_file._HEADER.size + 4 * BLOCK
BOUNDARIES = [0, 1, 7, 8, 11, 12, HEAD - 1, HEAD, HEAD + 1, IDS - 1, IDS, block_file.rows_from(BLOCK)]


def full(folder: Path) -> DiskTier:
    tier = make(folder)
    for namespace, tokens in WRITTEN:
        put(tier, tokens, namespace)
    return tier


def check_all(folder: Path, whole: int) -> None:
    """Whatever a fresh tier answers is right; at least `whole` prefixes are all there; and what is not, it can mend."""
    tier = make(folder)
    assert sum(holds(tier, tokens, namespace) == len(tokens) for namespace, tokens in WRITTEN) >= whole
    for namespace, tokens in WRITTEN:
        # Twice, since that a second file is bad is seen only when the first one is there again.
        for _ in range(2):
            put(tier, tokens, namespace)
            holds(tier, tokens, namespace)
        put(tier, tokens, namespace)
        assert holds(make(folder), tokens, namespace) == len(tokens)


@pytest.mark.parametrize("cut", [*BOUNDARIES, -1, -WIDTH, -WIDTH - 1])
def test_a_file_cut_short_anywhere_is_a_miss(tmp_path, cut):
    full(tmp_path)
    path = max(files(tmp_path), key=lambda path: path.stat().st_size)
    os.truncate(path, cut if cut >= 0 else path.stat().st_size + cut)
    check_all(tmp_path, 1)


@quick
@given(data=st.data())
def test_changed_files_are_misses_and_never_wrong(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("tier")
    full(folder)
    for path in data.draw(st.lists(st.sampled_from(files(folder)), min_size=1, unique=True), label="files"):
        raw = bytearray(path.read_bytes())
        match data.draw(st.sampled_from(["cut", "flip", "zero", "grow", "other"]), label="fault"):
            case "cut":
                raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
            case "flip":
                for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=3, unique=True)):
                    raw[at] ^= data.draw(st.integers(1, 255))
            case "zero":
                at = data.draw(st.integers(0, len(raw) - 1))
                raw[at:] = bytes(len(raw) - at)
            case "grow":
                raw += data.draw(st.binary(min_size=1, max_size=40))
            case "other":
                raw = bytearray(data.draw(st.sampled_from(files(folder))).read_bytes())
        path.write_bytes(raw)
    check_all(folder, 0)


def test_a_bad_file_is_removed_and_what_is_before_it_stays(tmp_path):
    tokens = list(range(20))
    put(make(tmp_path), tokens)
    tier = make(tmp_path)
    path = names(tier)[8]
    path.write_bytes(path.read_bytes()[:-1] + b"\xff\xff")
    assert tier.find(tokens) == 20
    assert tier.read(tokens, "", 0, 20) is None
    assert tier.find(tokens) == 8 and not path.exists() and tier.stats.corrupt == 1
    assert tier.read(tokens, "", 0, 8).tolist() == kv(tokens)[:8].tolist()
    assert tier.missing(tokens) == [(8, 16)]


def test_a_deleted_file_is_a_miss_also_for_who_knew_it(tmp_path):
    tokens = list(range(20))
    tier = make(tmp_path)
    put(tier, tokens)
    names(tier)[16].unlink()
    assert tier.read(tokens, "", 0, 20) is None and tier.find(tokens) == 16
    for path in files(tmp_path):
        path.unlink()
    assert tier.read(tokens, "", 0, 3) is None and holds(tier, tokens) == 0
    put(tier, tokens)
    assert holds(tier, tokens) == 20 and tier.stats.corrupt == 0


def test_a_file_cut_short_after_it_was_checked_is_a_miss(tmp_path):
    tier, tokens = make(tmp_path), list(range(8))
    put(tier, tokens)
    assert holds(tier, tokens) == 8
    os.truncate(files(tmp_path)[0], 130)
    assert tier.read(tokens, "", 0, 8) is None and tier.find(tokens) == 0


def test_what_another_writes_is_seen_though_the_folder_s_time_is_the_same(tmp_path):
    """File systems count time in steps."""
    a, b = make(tmp_path), make(tmp_path)
    put(b, [1] * 8)
    folder = files(tmp_path)[0].parent
    assert holds(a, [1] * 8) == 8
    before = folder.stat().st_mtime_ns
    put(b, [2] * 8)
    os.utime(folder, ns=(before, before))
    assert holds(a, [2] * 8) == 8


def test_rows_stay_readable_when_their_file_is_deleted(tmp_path):
    tier, tokens = make(tmp_path), list(range(8))
    put(tier, tokens)
    name = block_file.parse(files(tmp_path)[0].name)
    rows = tier._shelf.rows(name)
    files(tmp_path)[0].unlink()
    assert rows.tolist() == kv(tokens).tolist() and not rows.flags.writeable


def test_a_file_that_is_no_block_is_left_alone(tmp_path):
    tokens = list(range(20))
    tier = make(tmp_path, max_bytes=2_000)
    put(tier, tokens)
    folder = names(tier)[0].parent
    others = [tmp_path / "note.txt", tmp_path / "model-fp16" / "x.kv1", folder / "photo.jpg", folder / ("a" * 32)]
    for other in others:
        other.write_bytes(bytes(5_000))
    for i in range(30):
        put(tier, [i] * 20)
    assert all(other.exists() for other in others) and holds(make(tmp_path), [29] * 20) == 20


# --- crashes ---


def child(folder: Path, *, max_bytes: int, first: int, last: int) -> list[str]:
    """A command that writes prompts, each of which `prompt(i)` gives here too."""
    code = f"""
from hashlib import blake2b
import numpy as np
from palmette.radix_cache import DiskTier
WIDTH, BLOCK = {WIDTH}, {BLOCK}
{inspect.getsource(kv)}
{inspect.getsource(make)}
{inspect.getsource(prompt)}
tier = make({str(folder)!r}, max_bytes={max_bytes})
print("ready", flush=True)
for i in range({first}, {last}):
    tier.write(prompt(i), "", kv(prompt(i)))
    if i % 5 == 0:
        tier.flush()
"""
    return [sys.executable, "-c", code]


def prompt(i: int) -> list[int]:
    return [i % 7] * 9 + list(range(i, i + i % 40))


@pytest.mark.skipif(os.name != "posix", reason="only there it can be asked whether a writer still runs")
def test_a_writer_killed_at_any_moment_leaves_nothing_wrong(tmp_path):
    chance, max_bytes, found = np.random.default_rng(), 400_000, 0
    for run in range(5):
        command = child(tmp_path, max_bytes=max_bytes, first=1_000 * run, last=10**9)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(0.05 + 0.4 * chance.random())
            process.kill()
        tier = make(tmp_path)
        assert [path for path in files(tmp_path) if path.suffix == ".tmp"] == []
        for i in range(1_000 * run, 1_000 * run + 300):
            found += holds(tier, prompt(i))
        assert tier.stats.corrupt == 0 and size(tmp_path) <= max_bytes
    assert found > 100


def test_a_crash_of_the_machine_may_leave_a_short_file_under_its_name(tmp_path, monkeypatch):
    """The rename was on the disk before the bytes were."""
    replace = os.replace

    def early(source, target):
        os.truncate(source, 100)
        replace(source, target)

    monkeypatch.setattr(os, "replace", early)
    put(make(tmp_path), list(range(8)))
    monkeypatch.undo()
    assert holds(make(tmp_path), list(range(8))) == 0
    put(make(tmp_path), list(range(8)))
    assert holds(make(tmp_path), list(range(8))) == 8


def test_temporary_files_of_the_dead_are_removed_and_of_the_living_kept(tmp_path):
    tier = make(tmp_path)
    put(tier, list(range(8)))
    folder = files(tmp_path)[0].parent
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    own, gone, old = (folder / f"{pid}-{'0' * 15}{i}.tmp" for i, pid in enumerate([os.getpid(), dead.pid, os.getpid()]))
    for path in (own, gone, old):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert holds(make(tmp_path), list(range(8))) == 8
    assert own.exists() and not old.exists() and (os.name != "posix" or not gone.exists())


def test_a_program_that_ends_in_the_middle_of_writing_ends(tmp_path):
    command = child(tmp_path, max_bytes=10**6, first=0, last=200)
    done = subprocess.run(command, timeout=60, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    tier = make(tmp_path)
    assert holds(tier, [0] * 9) == 9 and tier.stats.corrupt == 0


# --- the bound ---


def test_least_recently_used_prefixes_go_first_and_of_each_the_end(tmp_path):
    tier = make(tmp_path, max_bytes=20 * block_file.Kind("f", WIDTH, BLOCK).size(BLOCK))
    prompts = [[i] * 24 for i in range(12)]  # three blocks each
    for i, prompt in enumerate(prompts):
        put(tier, prompt)
        assert size(tmp_path) <= 20 * tier.kind.size(BLOCK)
        if i >= 2:
            assert tier.read(prompts[0], "", 0, 20) is not None  # a use, again and again
    found = [holds(make(tmp_path), prompt) for prompt in prompts]
    assert found[0] == 24 and found[-1] == 24 and found[1] == 0
    assert found[1:] == sorted(found[1:]) and sum(n % 24 > 0 for n in found) <= 1
    stats = tier.stats
    assert stats.written_bytes - stats.evicted_bytes == size(tmp_path)
    assert stats.written_tokens == 12 * 24 and stats.dropped_tokens == 0


def test_no_block_outlives_the_ones_before_it(tmp_path):
    tier = make(tmp_path, max_bytes=24 * block_file.Kind("f", WIDTH, BLOCK).size(BLOCK))
    long = list(range(1, 97))  # 12 blocks, of which the second half comes later
    put(tier, long[:48])
    put(tier, [500] * 8)
    put(tier, long)
    seen = set()
    for i in range(600, 640):
        put(tier, [i] * 8)
        found = make(tmp_path).find(long)  # no use
        own = [path for start, path in names(tier).items() if start > 0]
        assert len(own) == max(found // BLOCK - 1, 0) and found % BLOCK == 0
        seen.add(found)
    assert len(seen) >= 3 and found == 0


def test_a_prefix_that_does_not_fit_is_written_as_far_as_it_does(tmp_path):
    tier = make(tmp_path, max_bytes=5 * block_file.Kind("f", WIDTH, BLOCK).size(BLOCK))
    put(tier, list(range(80)))
    found = holds(make(tmp_path), list(range(80)))
    assert 16 <= found <= 40 and found % BLOCK == 0
    assert tier.stats.dropped_tokens == 80 - found
    tiny = make(tmp_path / "tiny", max_bytes=100)
    put(tiny, list(range(8)))
    assert files(tmp_path / "tiny") == [] and tiny.writable


def test_the_bound_is_for_all_fingerprints_and_an_older_tier_s_files_go(tmp_path):
    max_bytes = 20 * block_file.Kind("f", WIDTH, BLOCK).size(BLOCK)
    old = make(tmp_path, fingerprint="old", max_bytes=max_bytes)
    for i in range(5):
        put(old, [i] * 24)
    new = make(tmp_path, fingerprint="new", max_bytes=max_bytes)
    for i in range(6):
        put(new, [i] * 24)
        assert size(tmp_path) <= max_bytes
    assert [holds(make(tmp_path, fingerprint="new"), [i] * 24) for i in range(2, 6)] == [24] * 4
    assert holds(make(tmp_path, fingerprint="old"), [0] * 24) == 0


def test_two_tiers_on_one_folder_at_once(tmp_path):
    """Each writes and reads what both write, under a bound that both run into."""
    max_bytes = 64 * block_file.Kind("f", WIDTH, BLOCK).size(BLOCK)
    tiers = [make(tmp_path, max_bytes=max_bytes) for _ in range(2)]
    prompts = [[i % 5] * 10 + list(range(i, i + 10)) for i in range(60)]
    faults: list[BaseException] = []

    def run(tier: DiskTier, seed: int) -> None:
        chance = np.random.default_rng(seed)
        try:
            for _ in range(60):
                prompt = prompts[chance.integers(60)]
                holds(tier, prompt)
                tier.write(prompt, "", kv(prompt))
                assert size_now(tmp_path) <= max_bytes + 2 * tier.kind.size(BLOCK)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(tier, i // 2)) for i, tier in enumerate(tiers * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    for tier in tiers:
        tier.close()
        assert tier.writable and tier.stats.corrupt == 0 and tier.stats.hit_tokens > 0
    # What one wrote, the other finds.
    last = list(range(100, 110))
    put(other := make(tmp_path, max_bytes=max_bytes), last)
    assert holds(tiers[0], last) == 10
    other.close()


def size_now(folder: Path) -> int:
    """As `size`, while files come and go."""
    total = 0
    for path in folder.rglob("*.kv1"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


# --- disks that do not write ---


def failing(monkeypatch, number: int, where: str) -> None:
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    if where == "open":
        monkeypatch.setattr(block_file.os, "open", fail)
    elif where == "write":
        real = open

        class Full:
            def __init__(self, file) -> None:
                self.file = file

            def __enter__(self):
                return self

            def __exit__(self, *error) -> None:
                self.file.close()

            def write(self, data) -> int:
                if len(data) > 50:
                    return self.file.write(data[:50])  # a short write first, as a full disk gives
                return fail()

        monkeypatch.setattr(block_file, "open", lambda *args, **kwargs: Full(real(*args, **kwargs)), raising=False)
    else:
        monkeypatch.setattr(block_file.os, where, fail)


@pytest.mark.parametrize("where", ["open", "write", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_ends_the_writing_with_one_line_in_the_log(tmp_path, monkeypatch, caplog, number, where):
    tier, before = make(tmp_path), list(range(8))
    put(tier, before)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="palmette"):
        failing(patch, number, where)
        for i in range(20, 24):
            put(tier, [i] * 20)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert os.strerror(number) in caplog.text and str(tmp_path) in caplog.text
    assert not tier.writable and tier.stats.dropped_tokens == 80
    assert len(files(tmp_path)) == 1
    assert holds(tier, before) == 8 and holds(tier, [20] * 20) == 0
    tier.close()


def test_a_folder_that_is_only_to_be_read_is_read(tmp_path, monkeypatch):
    put(make(tmp_path), list(range(20)))
    names(make(tmp_path))[16].write_bytes(b"bad")

    def fail(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *rest: (fail if flags & os.O_CREAT else real)(path, flags, *rest)
    )
    for name in ("unlink", "utime", "mkdir", "replace"):
        monkeypatch.setattr(os, name, fail)
    check_read_only(make(tmp_path))


def check_read_only(tier: DiskTier) -> None:
    """Of 20 tokens, the file of the last 4 is bad and cannot be removed."""
    tokens = list(range(20))
    assert holds(tier, tokens) == 0 and holds(tier, tokens) == 16 and tier.stats.corrupt == 1
    put(tier, [7] * 20)
    assert not tier.writable and holds(tier, [7] * 20) == 0 and holds(tier, tokens) == 16


def test_a_folder_that_cannot_be_made_is_an_empty_tier(tmp_path, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(Path, "mkdir", fail)
    with caplog.at_level(logging.WARNING, logger="palmette"):
        tier = make(tmp_path / "none")
    assert not tier.writable and len(caplog.records) == 1
    assert put(tier, list(range(8))) == 0 and holds(tier, list(range(8))) == 0


def test_a_folder_that_is_deleted_meanwhile_is_made_again(tmp_path):
    tier = make(tmp_path / "cache")
    put(tier, list(range(8)))
    shutil.rmtree(tmp_path / "cache")
    assert tier.read(list(range(8)), "", 0, 8) is None
    put(tier, list(range(8)))
    assert holds(tier, list(range(8))) == 8 and tier.writable


# --- the queue ---


@pytest.fixture
def slow(monkeypatch):
    """A disk that writes nothing until this event is set."""
    gate, write = threading.Event(), block_file.write_block

    def wait(*args):
        gate.wait(20)
        return write(*args)

    monkeypatch.setattr(disk_writer, "write_block", wait)
    yield gate
    gate.set()


def test_a_full_queue_drops_what_comes_last(tmp_path, slow):
    tier = make(tmp_path, queue_bytes=3 * BLOCK * WIDTH)
    asked = []

    def rows(tokens):
        return lambda start, end: asked.append((start, end)) or kv(tokens)[start:end]

    a, b = list(range(16)), list(range(50, 74))
    assert tier.write(a, "", rows(a)) == 16
    assert tier.write(b, "", rows(b)) == 8 and asked == [(0, 8), (8, 16), (0, 8)]
    assert tier.write([9] * 8, "", rows([9] * 8)) == 0
    assert tier.missing(a) == [] and tier.write(a, "", rows(a)) == 0  # it waits
    assert tier.stats.dropped_tokens == 24 and not tier.flush(0)
    assert tier.find(a) == 0
    slow.set()
    assert tier.flush(20)
    assert [holds(tier, tokens) for tokens in (a, b, [9] * 8)] == [16, 8, 0]
    assert tier.missing(b) == [(8, 16), (16, 24)]
    put(tier, b)
    assert holds(tier, b) == 24


def test_one_block_fits_any_queue(tmp_path):
    tier = make(tmp_path, queue_bytes=1)
    put(tier, list(range(8)))
    assert holds(tier, list(range(8))) == 8


def test_close_writes_what_waits_and_takes_no_more(tmp_path, slow):
    tier = make(tmp_path)
    tier.write([1] * 20, "", kv([1] * 20))
    threading.Timer(0.1, slow.set).start()
    tier.close()
    tier.close()
    assert holds(tier, [1] * 20) == 20
    assert put(tier, [2] * 20) == 0 and tier.stats.dropped_tokens == 20
    assert tier._writer._thread is None


def test_the_thread_ends_when_it_is_idle_and_starts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_writer, "_IDLE", 0.05)
    tier = make(tmp_path)
    for i in range(3):
        put(tier, [i] * 20)
        thread = tier._writer._thread
        if thread is not None:
            assert thread.daemon
            thread.join(10)
        assert tier._writer._thread is None
    assert holds(tier, [2] * 20) == 20


def test_a_fault_in_the_thread_is_told_and_the_next_job_is_done(tmp_path, monkeypatch, caplog):
    tier = make(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(disk_writer, "write_block", lambda *args: 1 // 0)
        put(tier, [1] * 8)
    assert "ZeroDivisionError" in caplog.text and tier.stats.dropped_tokens == 8
    put(tier, [1] * 8)
    assert holds(tier, [1] * 8) == 8


def test_counters(tmp_path):
    tier = make(tmp_path)
    put(tier, list(range(10)))
    put(tier, list(range(16)))
    tier.read(list(range(16)), "", 2, 9)
    stats = tier.stats
    assert stats.written_tokens == 10 + 8 and stats.hit_tokens == 7 and stats.read_bytes == 7 * WIDTH
    assert stats.written_bytes - stats.evicted_bytes == size(tmp_path) and stats.evicted_bytes > 0
    assert stats.corrupt == stats.dropped_tokens == 0


def test_a_file_that_is_changed_in_place_is_checked_anew(tmp_path):
    tier, tokens = make(tmp_path), list(range(20))
    put(tier, tokens)
    for _ in range(3):
        assert tier.read(tokens, "", 0, 20) is not None
    path = names(tier)[16]
    with open(path, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        last = file.read(1)
        file.seek(-3, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    assert tier.read(tokens, "", 0, 20) is None
    assert tier.stats.corrupt == 1


def test_what_was_checked_is_not_checked_again_for_being_used(tmp_path, monkeypatch):
    tier, tokens = make(tmp_path), list(range(20))
    put(tier, tokens)
    assert tier.read(tokens, "", 0, 20) is not None
    monkeypatch.setattr(block_file.zlib, "crc32", lambda *_: pytest.fail("read once more for its checksum"))
    for _ in range(3):
        assert tier.read(tokens, "", 0, 20) is not None


def test_a_folder_that_was_deleted_comes_back_as_private_as_it_was(tmp_path):
    folder = tmp_path / "cache"
    tier = make(folder)
    put(tier, list(range(20)))
    shutil.rmtree(folder)
    put(tier, list(range(40, 60)))
    made = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    assert len(made) >= 3
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}


def test_a_folder_of_many_blocks_is_not_listed_at_each_request(tmp_path, monkeypatch):
    """All that follows one prompt lies in one folder, which each write of ours changes."""
    tier, page = make(tmp_path, block=4), [7] * 4
    listed = []
    listdir = os.listdir
    monkeypatch.setattr(shelf.os, "listdir", lambda path: listed.append(path) or listdir(path))
    for number in range(600):
        put(tier, [*page, number, number, number, number])
    assert holds(tier, [*page, 5, 5, 5, 5]) == 8
    listed.clear()
    begun = time.monotonic()
    for number in range(200):
        put(tier, [*page, 1000 + number, 1, 1, 1])
        assert holds(tier, [*page, 1000 + number, 1, 1, 1]) == 8
    # Every look is followed by a rest, so that they take a small part of the time.
    assert len(listed) < 200
    assert holds(make(tmp_path, block=4), [*page, 1199, 1, 1, 1]) == 8
    assert time.monotonic() - begun < 60
