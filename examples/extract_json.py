"""Extraction: from a text file to a typed record.

    python examples/extract_json.py [FILE.txt]
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

import palmette as pt

NOTICE = Path(__file__).parent / "data" / "notice.txt"


class Notice(BaseModel):
    """What we want to know. The model cannot write anything else: every field is there, each of its type, no other."""

    place: Annotated[str, Field(max_length=40)]
    topic: Literal["repair", "event", "opening hours", "other"]
    upper_floor_open: bool
    contact: Annotated[str, Field(max_length=30)]
    phone: Annotated[str, Field(pattern=r"^[0-9]{3} [0-9]{4}$")]


@pt.function
def extract(s, text: str = NOTICE.read_text()):
    s += pt.system("You read notices and note the facts.")
    s += pt.user(f"{text}\n\nNote the place, the topic, whether the upper floor is open, whom to ask, and the phone.")
    s += pt.assistant(pt.gen("notice", type=Notice, max_tokens=96))


def main() -> None:
    text = Path(sys.argv[1] if len(sys.argv) > 1 else NOTICE).read_text()
    state = extract.run(text=text, backend=pt.Engine("smollm2-135m"), temperature=0)

    # A Notice, or TruncatedError if max_tokens cut the text: never half a record.
    notice = state.value("notice")
    print(notice.model_dump_json(indent=2))
    result = state.result("notice")
    print(f"{result.forced_tokens} of {result.completion_tokens} tokens were forced by the schema", file=sys.stderr)


if __name__ == "__main__":
    main()
