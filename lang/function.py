"""A program as an object: its body, its signature, what is bound already, and its sampling defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from palmette.arguments import integer, unknown_keyword
from palmette.lang.sampling import ALIASES, FIELDS, Sampling, sampling

_SAMPLING = (*FIELDS, *ALIASES)
_ACCOUNT = ("priority", "tenant", "namespace")


@dataclass(frozen=True, slots=True)
class Account:
    """On whose account a run goes, and how urgently. It changes when its requests are served, never their answers.

    priority: higher first, where the backend goes by it. tenant: whose share is used up, where shares are fair.
    namespace: runs share cached prefixes only within one.
    """

    priority: int = 0
    tenant: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One run to be: checked arguments of the body (without the state), the sampling defaults, and the account."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    sampling: Sampling
    account: Account = Account()


@dataclass(frozen=True, eq=False)
class Function:
    """A function whose first parameter is the state. `bound` are arguments given ahead by `bind`."""

    body: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    bound: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.body):
            raise TypeError(f"@function decorates a function, not {self.body!r}")
        parameters = list(inspect.signature(self.body).parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise TypeError(f"{self.name}() needs a first parameter for the state, as in def {self.name}(s)")
        if inspect.isgeneratorfunction(self.body) or inspect.isasyncgenfunction(self.body):
            raise TypeError(f"{self.name}() is a generator: calling it runs nothing; remove the yield")
        # Frozen: the signature is worked out once, not at each of thousands of runs.
        object.__setattr__(self, "__name__", self.name)
        object.__setattr__(self, "__doc__", self.body.__doc__)
        object.__setattr__(self, "__wrapped__", self.body)
        object.__setattr__(self, "_signature", inspect.Signature(parameters[1:]))
        object.__setattr__(self, "_sampling", sampling(f"@function {self.name}", self.defaults))

    @staticmethod
    def checked_defaults(defaults: Mapping[str, Any]) -> Mapping[str, Any]:
        """The decorator's keywords, all of them sampling settings. TypeError for one that is none."""
        for key in defaults:
            if key not in _SAMPLING:
                raise unknown_keyword("@function", key, _SAMPLING)
        return defaults

    @property
    def name(self) -> str:
        return getattr(self.body, "__name__", type(self.body).__name__)

    @property
    def parameters(self) -> inspect.Signature:
        """The signature without the state."""
        signature: inspect.Signature = self._signature  # type: ignore[attr-defined]
        return signature

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.body)

    def takes(self, keyword: str) -> bool:
        """Whether the body has a parameter of this name (which then hides a run option of the same name)."""
        return keyword in self.parameters.parameters

    def bind(self, **arguments: Any) -> Self:
        """The same program with some arguments given; settings of the decorator stay."""
        self._refuse_unknown(arguments)
        return replace(self, bound={**self.bound, **arguments})

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Sorts `kwargs` into the body's arguments, sampling defaults and the account. TypeError for what fits none."""
        own: dict[str, Any] = {}
        options: dict[str, Any] = {}
        account: dict[str, Any] = {}
        for key, value in kwargs.items():
            if self.takes(key):
                own[key] = value
            elif key in _ACCOUNT:
                account[key] = _checked(f"{self.name}.run()", key, value)
            else:
                (options if key in _SAMPLING else own)[key] = value
        self._refuse_unknown(own)
        if self.bound:
            placed = list(self.parameters.parameters)[: len(args)]
            own = {**{key: value for key, value in self.bound.items() if key not in placed}, **own}
        try:
            self.parameters.bind(*args, **own)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}; it takes {self.name}{self.parameters}") from None
        settings: Sampling = self._sampling  # type: ignore[attr-defined]
        if options:
            settings = sampling(f"{self.name}.run()", {**_without_alias(self.defaults, options), **options})
        return Call(args, own, settings, Account(**account))

    def _refuse_unknown(self, arguments: Mapping[str, Any]) -> None:
        parameters = self.parameters.parameters
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return
        for key in arguments:
            if key not in parameters:
                raise unknown_keyword(f"{self.name}()", key, [*parameters, *_SAMPLING, *_ACCOUNT])


def _checked(where: str, name: str, value: object) -> int | str:
    if name == "priority":
        return integer(where, name, value, least=-(2**31))
    if not isinstance(value, str):
        raise TypeError(f"{where}: {name}= takes a string, not {value!r}")
    return value


def _without_alias(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The decorator's defaults less those that an option of the run replaces under another spelling."""
    hidden = {"max_tokens", "max_new_tokens"} if {"max_tokens", "max_new_tokens"} & set(options) else set()
    if {"logprobs", "return_logprob", "top_logprobs_num"} & set(options):
        hidden |= {"logprobs", "return_logprob", "top_logprobs_num"}
    return {key: value for key, value in defaults.items() if key not in hidden}
