"""Nodes of the language become operations: defaults filled in, and refused here what the backend lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from palmette.errors import CapabilityError
from palmette.interpreter.operations import BeginRole, Choose, EndRole, Generate, Operation, Where, Write
from palmette.lang.function import Account
from palmette.lang.nodes import Gen, Node, RoleBegin, RoleEnd, Select, Text
from palmette.lang.sampling import Sampling
from palmette.lang.types import json_value
from palmette.runtime.protocol import Capabilities, Constraint, SamplingParams

_PARAMS = frozenset(SamplingParams.__dataclass_fields__)


def lower(node: Node, defaults: Sampling, capabilities: Capabilities, where: Where) -> Operation:
    """The operation of one node. CapabilityError where the backend does not do what the node asks for."""
    if isinstance(node, Text):
        return Write(node.text, node.trusted, where=where)
    if isinstance(node, Gen):
        return _generate(node, defaults, capabilities, where)
    if isinstance(node, Select):
        return _choose(node, defaults, capabilities, where)
    if isinstance(node, RoleBegin):
        return BeginRole(node.role, where=where)
    if isinstance(node, RoleEnd):
        return EndRole(where=where)
    raise TypeError(f"the interpreter does not know {type(node).__name__} nodes")


def _generate(node: Gen, defaults: Sampling, capabilities: Capabilities, where: Where) -> Generate:
    settings = node.sampling.over(defaults)
    if "logit_bias" in settings:
        settings["logit_bias"] = dict(settings["logit_bias"])
    for name in ("token_healing", "pressure"):
        if not settings.get(name, True):
            # What no backend need be able to do.
            del settings[name]
    missing = settings.keys() - capabilities.params
    if missing:
        raise _lacks(capabilities, f"gen({node.name!r}, {min(missing)}=...)")
    if not settings.keys() <= _PARAMS:
        raise _lacks(capabilities, f"gen({node.name!r}, {min(settings.keys() - _PARAMS)}=...)")
    if settings.get("logprobs") is not None and not capabilities.logprobs:
        raise _lacks(capabilities, f"gen({node.name!r}, logprobs=...)")
    spec = node.constraint
    constraint = None
    if spec is not None:
        if spec.kind not in capabilities.constraints:
            asked = f"type={node.type.name}" if node.type else f"{spec.kind}=..."
            raise _lacks(capabilities, f"gen({node.name!r}, {asked})", f"{spec.kind} constraints")
        constraint = Constraint(spec.kind, spec.spec, spec.whitespace, spec.on_unsupported, spec.retries)
    parse: Callable[[str], Any] | None = None
    type_name = None
    if node.type is not None:
        parse, type_name = node.type.parse, node.type.name
    elif spec is not None and spec.kind == "json_schema":
        parse, type_name = json_value, "JSON"
    return Generate(node.name, SamplingParams(**settings), constraint, parse, type_name, where=where)


def _choose(node: Select, defaults: Sampling, capabilities: Capabilities, where: Where) -> Choose:
    if not capabilities.score:
        raise _lacks(capabilities, f"select({node.name!r})", "scoring of choices")
    seed = defaults.seed if node.seed is None else node.seed
    return Choose(node.name, node.choices, node.method, node.temperature, seed, where=where)


def check_account(account: Account, capabilities: Capabilities) -> None:
    """CapabilityError where a run is on an account that the backend does not go by."""
    for field in fields(account):
        if getattr(account, field.name) != field.default and not capabilities.account:
            raise _lacks(capabilities, f"run({field.name}=...)")


def _lacks(capabilities: Capabilities, asked: str, feature: str = "it") -> CapabilityError:
    return CapabilityError(
        f"{asked} was asked of backend {capabilities.name!r}, which does not do {feature}",
        hint="leave it out, or run the program on a backend that does it",
    )
