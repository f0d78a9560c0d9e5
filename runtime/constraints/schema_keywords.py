"""Every keyword of JSON Schema drafts 4 to 2020-12: what becomes of it. What is not here is refused."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEPT = _words(
    "type enum const required minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum "
    "multipleOf minItems maxItems items prefixItems additionalItems properties patternProperties additionalProperties "
    "minProperties maxProperties anyOf oneOf allOf $ref uniqueItems"
)

# They assert nothing. From `links` on they are not JSON Schema proper, but hyper-schema, OpenAPI, Snowplow and editors.
# Names that begin with "x-" or "_" are notes too.
ANNOTATIONS = _words(
    "title description default examples $comment readOnly writeOnly deprecated $schema $id id $anchor $dynamicAnchor "
    "$recursiveAnchor $vocabulary definitions $defs contentMediaType contentEncoding contentSchema "
    "links base media readonly example discriminator externalDocs xml self markdownDescription enumNames "
    "enumDescriptions markdownEnumDescriptions errorMessage deprecationMessage defaultSnippets doNotSuggest "
    "suggestSortText allowComments allowTrailingCommas intellij tsType javaType propertyOrder format_description"
)

# Why it cannot be enforced, and what to do.
REFUSED = {
    "contains": "say it of all items with items, or check afterwards",
    "minContains": "check it afterwards",
    "maxContains": "check it afterwards",
    "propertyNames": "say it with patternProperties and additionalProperties: false",
    "dependencies": "write the cases as anyOf",
    "dependentRequired": "write the cases as anyOf",
    "dependentSchemas": "write the cases as anyOf",
    "unevaluatedProperties": "use additionalProperties: false beside all the properties",
    "unevaluatedItems": "use items: false beside prefixItems",
    "not": "say what is allowed instead",
    "if": "write the cases as anyOf",
    "then": "write the cases as anyOf",
    "else": "write the cases as anyOf",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
    "divisibleBy": "use multipleOf (draft 4 and later)",
    "disallow": "say what is allowed instead",
    "extends": "use allOf (draft 4 and later)",
}

# Standard formats that cannot be asserted; those that no draft knows are annotations (JSON Schema 2020-12, 7.2.3).
REFUSED_FORMATS = _words(
    "idn-email idn-hostname uri-reference iri iri-reference uri-template json-pointer relative-json-pointer regex"
)
KEPT_FORMATS = _words("time duration email hostname ipv4 ipv6 uuid uri")

# Dates that exist. llguidance takes every day up to the 31st, and the 29th of February in any year.
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    # A leap second is written at midnight UTC only; its other spellings are left out.
    "date-time": rf"^{_DATE}[Tt]({_CLOCK}:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]{_CLOCK})|23:59:60(\.[0-9]+)?[Zz])$",
}
