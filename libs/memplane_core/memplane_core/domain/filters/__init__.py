"""Filters: one typed tree, read from JSON, that Postgres, Milvus and Python understand alike.

`{"user_id": "u1", "scene": ["a", "b"], "priority": {"gt": 3}, "metadata.lang": {"in": ["zh", "en"]},
"OR": [{..}, {..}], "AND": [..], "NOT": {..}}`: what stands side by side must all hold.

* A bare value asks for equality; a bare list on `scene` for all of its tags, on another field for one of its values.
* Null asks for what is missing; a missing value is equal to nothing else, and neither below nor above anything. So
  `ne`, `nin` and `NOT` hold where there is no value: a filter is true or false, never unknown.
* `scene` is a set of tags: `eq` and `in` ask whether it holds the tag, or one of them.
* `metadata.a.b` leads into objects; a dot or a backslash that belongs to a key has a backslash before it. JSON null is
  missing. Values are equal when they are the same JSON (1 is 1.0, and never true or "1"); `gt` and its like compare
  numbers with numbers and strings with strings; `contains_any` and `contains_all` look into arrays.
* Strings are ordered by their bytes in UTF-8. Times are RFC 3339 or epoch seconds, and UTC where they say nothing else.
"""

from memplane_core.domain.filters.evaluate import matches
from memplane_core.domain.filters.parse import MAX_CONDITIONS, MAX_DEPTH, MAX_LIST, operators_of, parse_filter
from memplane_core.domain.filters.superset import index_superset, seen_by_index
from memplane_core.domain.filters.tree import (
    EVERYTHING,
    FIELDS,
    And,
    Condition,
    Field,
    Filter,
    Json,
    Kind,
    Not,
    Op,
    Or,
    Value,
    fields_of,
    fingerprint,
)

__all__ = [
    "EVERYTHING",
    "FIELDS",
    "MAX_CONDITIONS",
    "MAX_DEPTH",
    "MAX_LIST",
    "And",
    "Condition",
    "Field",
    "Filter",
    "Json",
    "Kind",
    "Not",
    "Op",
    "Or",
    "Value",
    "fields_of",
    "fingerprint",
    "index_superset",
    "matches",
    "operators_of",
    "parse_filter",
    "seen_by_index",
]
