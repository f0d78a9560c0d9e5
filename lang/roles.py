"""Chat roles and trusted text, as expressions."""

from __future__ import annotations

from palmette.lang.nodes import Expression, RoleBegin, RoleEnd, Sequence, Text, flatten


def special(text: str) -> Text:
    """Text whose control tokens are meant as such: `special("<|im_start|>")`. Never pass a user's text."""
    if not isinstance(text, str):
        raise TypeError(f"special takes a str, not {text!r}")
    return Text(text, trusted=True)


def role(name: str, expression: Expression) -> Sequence:
    """A whole message of role `name`."""
    return Sequence((RoleBegin(name), *flatten(expression), RoleEnd(name)))


def system(expression: Expression) -> Sequence:
    """A system message."""
    return role("system", expression)


def user(expression: Expression) -> Sequence:
    """A user message."""
    return role("user", expression)


def assistant(expression: Expression) -> Sequence:
    """An assistant message. A `gen` in it also ends at the template's end-of-message token."""
    return role("assistant", expression)


def system_begin() -> RoleBegin:
    return RoleBegin("system")


def system_end() -> RoleEnd:
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    return RoleBegin("user")


def user_end() -> RoleEnd:
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    return RoleEnd("assistant")
