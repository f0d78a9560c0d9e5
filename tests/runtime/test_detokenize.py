"""Text as it becomes safe to show."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from palmette.runtime.detokenize import TextStream


def run(pieces: list[bytes], stops: list[str]) -> tuple[list[str], str]:
    """What is shown piece by piece, and the whole text, when a stop string cuts."""
    stream = TextStream(stops)
    shown = []
    for piece in pieces:
        hit = stream.feed(piece)
        if hit is not None:
            stream.cut(hit.at)
            break
        shown.append(stream.take())
    shown.append(stream.take(final=True))
    return shown, stream.text()


def test_a_character_split_over_tokens_is_shown_whole() -> None:
    pieces = [bytes.fromhex(h) for h in ("20c4", "8f", "c3a1", "62", "656c", "f09f", "9188")]
    shown, text = run(pieces, [])
    assert text == " ďábel👈"
    assert "".join(shown) == text
    assert not any("\ufffd" in part for part in shown)


def test_a_dangling_character_at_the_end_is_one_replacement() -> None:
    shown, text = run([bytes.fromhex("e4bda0"), bytes.fromhex("e5a5")], [])
    assert text == "你\ufffd"
    assert "".join(shown) == text


def test_a_stop_string_over_four_tokens_is_never_shown() -> None:
    shown, text = run([b"mar", b"ch-", b"apr", b"il", b" may"], ["march-april"])
    assert (shown, text) == (["", "", "", ""], "")


def test_the_stop_string_that_is_complete_first_cuts() -> None:
    assert run([b"xabc"], ["abc", "b"])[1] == run([b"x", b"a", b"b", b"c"], ["abc", "b"])[1] == "xa"
    assert run([b"xabc"], ["bc", "abc"])[1] == "x"
    pieces = [b"Thought: look", b" it up\n", b"Obs", b"erv", b"ation: x", b"Action: find"]
    shown, text = run(pieces, ["\nObservation", "Observation:"])
    assert text == "Thought: look it up" == "".join(shown)


@given(
    st.text(alphabet="abñ👈", max_size=30),
    st.lists(st.integers(1, 5), min_size=1, max_size=40),
    st.lists(st.text(alphabet="abñ👈", min_size=1, max_size=4), max_size=3),
)
def test_any_split_shows_the_same_text(text: str, sizes: list[int], stops: list[str]) -> None:
    raw, pieces = text.encode(), []
    for size in sizes:
        pieces.append(raw[:size])
        raw = raw[size:]
    pieces.append(raw)
    shown, got = run(pieces, stops)
    assert "".join(shown) == got
    assert run([bytes([byte]) for byte in text.encode()], stops)[1] == got
    assert text.startswith(got)
    assert not any(stop in got for stop in stops)
    if not any(stop in text for stop in stops):
        assert got == text
