"""Templates of several makes, cut at their contents."""

from __future__ import annotations

import pytest

from palmette.errors import ModelError
from palmette.runtime.chat import ChatTemplate, default_template
from palmette.runtime.prompt import chat_pieces
from palmette.runtime.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<sys>Be kind.</sys>{% endif %}{% for m in messages %}"
    "<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# The system text goes into the first user message; roles must alternate; answers end with the end token.
FOLDED = (
    "{% if messages[0].role == 'system' %}{% set sys = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant') }}"
    "{% endif %}{% if m.role == 'user' %}[INST] {{ sys if loop.first else '' }}{{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# Moves the system text into the newest user message, as Mistral's third template does.
MOVED = (
    "{% if messages[0].role == 'system' %}{% set sys = messages[0].content + '\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}<s>{% for m in rest %}{% if m.role == 'user' %}"
    "[INST]{{ sys if loop.last else '' }}{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<a>{{ m.content.split('</think>')[-1].strip() }}</a>"
    "{% else %}<u>{{ m.content }}</u>{% endif %}{% endfor %}{% if add_generation_prompt %}<a><think>\n{% endif %}"
)


def template(source, **variables):
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>", **variables}, name="m")


def conversation(chat, messages, answer=True):
    """The text that a program writes message by message."""
    text, roles = "", []
    for role, content in messages:
        roles.append(role)
        text += chat.open(roles) + (content.strip() if chat.trims(role) else content) + chat.close(roles)
    return text + (chat.open([*roles, "assistant"]) if answer else "")


@pytest.mark.parametrize("source", [CHATML, DEFAULT_SYSTEM, FOLDED, THINKING])
@pytest.mark.parametrize("system", [False, True])
def test_message_by_message_equals_the_whole(source, system):
    chat = template(source)
    messages = [("user", "one"), ("assistant", "two"), ("user", " three"), ("assistant", "4"), ("user", "5 ")]
    messages = [("system", "s"), *messages] if system and source is not THINKING else messages
    rendered = chat._compile().render(
        messages=[{"role": r, "content": c} for r, c in messages],
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    if source is THINKING:  # an answer stays as it was made, with what the template put in front of it
        rendered = rendered.replace("<a>", "<a><think>\n", 2)
    if source is FOLDED:  # the blank before an answer is the model's to write: its generation prompt has none
        rendered = rendered.replace("[/INST] two", "[/INST]two").replace("[/INST] 4", "[/INST]4")
    assert conversation(chat, messages) == rendered


def test_pieces_of_chatml():
    chat = template(CHATML)
    assert chat.open(["system"]) == "<|im_start|>system\n"
    assert chat.open(["user", "assistant"]) == "<|im_start|>assistant\n"
    assert chat.close(["user", "assistant"]) == "<|im_end|>\n"
    assert chat.open(["assistant"]) == "<|im_start|>assistant\n"
    assert chat.open(["user", "tool"]) == "<|im_start|>tool\n"


def test_a_default_system_text_is_part_of_the_first_opening():
    chat = template(DEFAULT_SYSTEM)
    assert chat.open(["user"]) == "<sys>Be kind.</sys><user>"
    assert chat.open(["system"]) == "<system>"
    assert chat.trims("user") and chat.trims("system") and chat.trims("assistant")
    assert not template(CHATML).trims("user")


def test_folded_system_text_closes_before_the_user_begins():
    chat = template(FOLDED)
    assert chat.open(["system"]) == "<s>[INST] "
    assert chat.close(["system"]) == "\n\n"
    assert chat.open(["system", "user"]) == ""
    assert chat.close(["system", "user"]) == " [/INST]"
    assert not chat.trims("assistant")
    with pytest.raises(ModelError, match="Roles must alternate user/assistant") as caught:
        chat.open(["user", "user"])
    assert "user, user" in str(caught.value)


def test_moved_system_text_stays_where_it_was():
    chat = template(MOVED)
    messages = [("system", "s"), ("user", "one"), ("assistant", "two"), ("user", "three")]
    assert conversation(chat, messages) == "<s>[INST]s\none[/INST]two</s>[INST]three[/INST]"


def test_contents_are_no_template_text():
    """Marks, braces and Jinja in contents are the caller's affair: the template never sees contents."""
    chat = template(CHATML)
    assert conversation(chat, [("user", "{{ 7 * 7 }}")], answer=False) == "<|im_start|>user\n{{ 7 * 7 }}<|im_end|>\n"


def test_no_template_and_broken_templates():
    """Case ml-10."""
    chat = template(None)
    for use in (lambda: chat.open(["user"]), lambda: chat.close(["user"]), lambda: chat.trims("user")):
        with pytest.raises(ModelError, match="m has no chat template") as caught:
            use()
        assert "chat_template.jinja" in caught.value.hint
    with pytest.raises(ModelError, match="cannot be read"):
        template("{% for %}").open(["user"])
    with pytest.raises(ModelError, match="leaves out the content of a user message"):
        template("nothing").open(["user"])
    with pytest.raises(ModelError, match="refuses the roles user"):
        template("{{ messages[0].content + missing.deeper.still }}").open(["user"])


def test_an_empty_system_message_is_absent_where_the_template_refuses_one():
    """Case oa-05."""
    strict = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    user, empty = {"role": "user", "content": "hi"}, {"role": "system", "content": ""}
    refusing = Tokenizer.of_bytes(chat_template=strict)
    assert chat_pieces(refusing, [empty, user]) == chat_pieces(refusing, [user])
    for messages in ([{**empty, "content": "Be kind."}, user], [empty], [empty, empty], [user, user]):
        with pytest.raises(ModelError, match="roles must alternate"):
            chat_pieces(refusing, messages)
    # Where there is a place for it, an empty one says something: it stands in the way of a default system text.
    open_minded = Tokenizer.of_bytes(chat_template=DEFAULT_SYSTEM)
    assert "Be kind." in "".join(piece.text for piece in chat_pieces(open_minded, [user]))
    assert "Be kind." not in "".join(piece.text for piece in chat_pieces(open_minded, [empty, user]))


def test_templates_run_in_a_sandbox():
    with pytest.raises(ModelError, match="unsafe"):
        template("{{ ''.__class__.__mro__ }}{{ messages[0].content }}").open(["user"])


def test_what_templates_may_call():
    chat = template(
        "{{ strftime_now('%Y')[:2] }}{{ {'a': '<é>'} | tojson }}{% for m in messages %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )
    assert chat.open(["user"]) == '20{"a": "<é>"}'


def test_default_template():
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert default_template(named) == "D"
    assert default_template(named[:1]) == "T"
    assert default_template("x") == "x"
    assert default_template(None) is default_template("") is None
