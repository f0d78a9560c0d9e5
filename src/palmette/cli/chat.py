"""`palmette chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from palmette.cli.output import console, show_error
from palmette.errors import PalmetteError, suggestion

HELP = """\
/help            this list
/reset           forget the conversation, keep the system message
/system [TEXT]   set the system message and begin anew; without TEXT show it
/quit            end (also Ctrl-D)
Ctrl-C           stop the answer that is being written
"""
COMMANDS = ("/help", "/reset", "/system", "/quit")


@dataclass(slots=True)
class Conversation:
    """What was said, as chat messages. `system` None: none was set, and the model's template may put its own."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages(self) -> list[dict[str, str]]:
        head = [{"role": "system", "content": self.system}] if self.system is not None else []
        return head + self.turns

    def say(self, role: str, content: str) -> None:
        self.turns.append({"role": role, "content": content})


def talk(model: str, *, system: str | None, temperature: float, max_tokens: int) -> None:
    """Read lines and answer them until /quit or the end of the input."""
    import palmette

    conversation = Conversation(system)
    with palmette.Engine(model) as engine:
        if sys.stdin.isatty():
            console().print(f"{model}: /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends", style="dim")
        while (line := read_line()) is not None:
            if line.startswith("/"):
                if not obey(line[1:], conversation):
                    return
            elif line.strip():
                conversation.say("user", line)
                try:
                    answer(engine, conversation, temperature=temperature, max_tokens=max_tokens)
                except PalmetteError as error:
                    conversation.turns.pop()  # as though the question had not been asked
                    show_error(error)


def read_line() -> str | None:
    """The next line; None at the end. Ctrl-C while typing clears the line, as in a shell."""
    while True:
        try:
            # No prompt where the input is a file or a pipe: the output is then the answers alone.
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            print()


def answer(engine: Any, conversation: Conversation, *, temperature: float, max_tokens: int) -> None:
    """Stream one answer and add it to the conversation. Ctrl-C ends it where it is; what was shown is kept."""
    said = []
    chunks = engine.generate(conversation.messages(), stream=True, temperature=temperature, max_tokens=max_tokens)
    try:
        for chunk in chunks:
            said.append(chunk.text)
            print(chunk.text, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    finally:
        chunks.close()  # cancels the request where it has not ended
        print()
    conversation.say("assistant", "".join(said))


def obey(command: str, conversation: Conversation) -> bool:
    """Carry out a /command; False when the talk is over."""
    name, _, rest = command.partition(" ")
    match name:
        case "quit":
            return False
        case "help":
            print(HELP, end="")
        case "reset":
            conversation.turns.clear()
            print("(a new conversation)")
        case "system" if rest.strip():
            conversation.system = rest.strip()
            conversation.turns.clear()
            print("(a new conversation)")
        case "system":
            print(conversation.system if conversation.system is not None else "(no system message)")
        case _:
            print(f"there is no command /{name}; {suggestion(f'/{name}', COMMANDS)}", file=sys.stderr)
    return True
