"""Constrained decoding: text that satisfies a regex, a list of choices, a JSON schema or a grammar, or a refusal.

`compile.ConstraintCompiler` turns a `protocol.Constraint` into a `CompiledConstraint` over a `Vocabulary`, whose
matchers (`matcher.Matcher`) say which tokens may come next. Choices are a trie of bytes, regexes an automaton over
bytes of our own; JSON schemas, grammars and very large regexes are llguidance's. Needs neither torch nor transformers.
"""

from palmette.runtime.constraints.accepts import accepts
from palmette.runtime.constraints.compile import CompilerStats, ConstraintCompiler, validate
from palmette.runtime.constraints.matcher import CompiledConstraint, Matcher
from palmette.runtime.constraints.vocabulary import Vocabulary

__all__ = ["CompiledConstraint", "CompilerStats", "ConstraintCompiler", "Matcher", "Vocabulary", "accepts", "validate"]
