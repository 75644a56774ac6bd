#!/usr/bin/env python3
"""Forms of answers against another implementation: texts that tool_grammar makes of random tokens
are parsed by Python and validated by the package jsonschema, and valid documents are accepted.

The vocabulary is that of a small model of the tests.
"""
import json
import os
import random
import subprocess
import sys
import uuid
from pathlib import Path

import jsonschema

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("QUIPU_BUILD", HERE.parent / "build"))
VOCABULARY = HERE / "golden/models/llama-text.gguf"

# A schema; documents that are valid and that the form has; documents that are not valid.
CASES = [
    ({"type": "string"}, ["", "a", "\u00e9\u4e2d\U0001f600", "q\"b\\s/\n\t\u0001"], [1, None, ["a"]]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "\U0001f600\u00e9c"], ["a", "abcd"]),
    ({"type": "string", "maxLength": 5000}, ["", "x" * 5000], ["x" * 5001]),
    ({"type": "string", "minLength": 100}, ["x" * 100, "x" * 300], ["x" * 99]),
    ({"type": "integer"}, [0, -1, 123456789012345678], [1.5, "1", True]),
    ({"type": "number"}, [0, -0.5, 1e-05, 1.5e+200, 12.25], ["1", None]),
    ({"type": "integer", "minimum": -17, "maximum": 1234}, [-17, -9, 0, 9, 10, 99, 100, 1234], [-18, 1235, 9999]),
    ({"type": "integer", "minimum": 7}, [7, 9, 10, 12345678], [6, 0, -7]),
    ({"type": "integer", "exclusiveMaximum": -20}, [-21, -99, -100], [-20, -3, 0, 21]),
    ({"type": "integer", "minimum": 95, "maximum": 105}, list(range(95, 106)), [94, 106, 5, 950]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5, 0.001, 1.0], [1.5, -0.1, 2, 10]),
    ({"type": "number", "exclusiveMinimum": 0.25, "maximum": 0.5}, [0.26, 0.5, 0.2500001, 0.4], [0.25, 0.51, 0.2, 0, 1]),
    ({"type": "number", "minimum": -3.75, "exclusiveMaximum": 12.5}, [-3.75, -3, -0.5, 0, 7.99, 12.49, 12], [-3.76, -4, 12.5, 13, 100]),
    ({"type": "number", "maximum": -1.5}, [-1.5, -2, -1.75, -100.25], [-1.4, -1, 0, 3]),
    ({"type": "boolean"}, [True, False], [0, "true", None]),
    ({"type": "null"}, [None], [0, False]),
    ({"type": ["string", "null"]}, ["a", None], [1]),
    ({"type": "string", "nullable": True}, ["a"], [1]),
    ({"enum": ["a", "ab", "b", 1, 10, None, True, {"k": [1, "x"]}, []]}, ["a", "ab", "b", 1, 10, None, True, {"k": [1, "x"]}, []], ["c", 2, {}, [1]]),
    ({"type": "string", "enum": ["red", "green", 3]}, ["red", "green"], ["blue", 3]),
    ({"const": "only\n"}, ["only\n"], ["other"]),
    ({"type": "integer", "enum": [1, 5, 100], "minimum": 1, "exclusiveMaximum": 100}, [1, 5], [100]),
    ({"enum": ["a", "\u00e9\u4e2d", "abc", 7], "minLength": 2, "maxLength": 2}, ["\u00e9\u4e2d", 7], ["a", "abc"]),
    ({"enum": [1, 2], "const": 2}, [2], [1]),
    ({"allOf": [{"type": "string", "nullable": True}, {"type": "string"}]}, ["a"], [None]),
    ({"properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False}, [{"a": 1}, {}], [{"b": 1}]),
    ({"type": "array"}, [[], [1, "a", [None]], [[[]]]], [{}, 1]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}, [[1], [1, 2, 3]], [[], [1, 2, 3, 4], ["a"]]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 70, "maxItems": 90}, [[True] * 70, [False] * 90], [[True] * 69, [True] * 91]),
    ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False}, [[], ["a"], ["a", 1]], [[1], ["a", 1, 2]]),
    ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "null"}, "minItems": 2}, [["a", None], ["a", None, None]], [["a"], ["a", 1]]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": {"type": "null"}},
     [[], ["a"], ["a", 1], ["a", 1, None, None]], [[1], ["a", 1, 2]]),
    ({"type": "object"}, [{}, {"a": 1, "": [{}]}], [[], "a"]),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}}, "required": ["b"], "additionalProperties": False},
     [{"b": ""}, {"a": 1, "b": "x"}, {"b": "x", "c": None}, {"a": 0, "b": "", "c": None}], [{}, {"a": 1}, {"b": 1}, {"b": "", "d": 1}]),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {}}, "additionalProperties": {"type": "boolean"}},
     [{}, {"a": 1}, {"a": 1, "ab": "x", "abc": True, "b": False, "": True}, {"\u00e9": True}], [{"a": True}, {"b": 1}]),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2}, [{"x": 1}, {"x": 1, "y": 2}], [{}, {"x": "a"}, {"a": 1, "b": 2, "c": 3}]),
    ({"type": "object", "properties": {"o\"k\\": {"const": 1}}, "required": ["o\"k\\"], "additionalProperties": False}, [{"o\"k\\": 1}], [{}]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]}, [1, "ab"], ["abc", None]),
    ({"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "integer"}}, "required": ["t", "x"], "additionalProperties": False},
                {"type": "object", "properties": {"t": {"const": "b"}}, "required": ["t"], "additionalProperties": False}]},
     [{"t": "a", "x": 1}, {"t": "b"}], [{"t": "a"}, {"t": "b", "x": 1}]),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "string"}, "a": {"maximum": 9, "minimum": 2, "type": "integer"}}, "required": ["b"]}]},
     [{"a": 2, "b": ""}], [{"a": 1, "b": ""}, {"b": ""}, {"a": 5}]),
    ({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"], "additionalProperties": False}}},
     [{"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": {"v": 3, "next": None}}}], [{"v": 1}, {"v": 1, "next": {}}]),
    ({"type": "array", "items": {"$ref": "#"}, "maxItems": 2}, [[], [[], [[]]]], [[1], [[], [], []]]),
    ({"type": "object", "properties": {"a": {"$ref": "#/definitions/p~1q", "description": "beside"}}, "required": ["a"], "definitions": {"p/q": {"type": "integer"}}}, [{"a": 1}], [{"a": "x"}]),
    ({"$defs": {"s": {"type": "string"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/s", "maxLength": 2}}, "required": ["a"]}, [{"a": "xy"}], [{"a": "xyz"}]),
    ({"type": "string", "pattern": "^[a-c]+\\d{2,3}(x|yz)?$"}, ["a12", "abc123x", "c00yz"], ["12", "a1", "a12y", "a1234"]),
    ({"type": "string", "pattern": "b\\.\"\\\\"}, ["ab.\"\\c", "b.\"\\"], ["b.", "ab."]),
    ({"type": "string", "pattern": "^\\w+(\\s[^\\s]*)?$|^-$"}, ["ab", "a \u00e9\"", "-"], ["", " a"]),
    ({"type": "string", "pattern": "^(?:[\\u00e0-\\u00ff]|.{3})$"}, ["\u00e9", "abc", "\U0001f600bc"], ["e", "ab", "a\nb"]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2023-12-31", "2000-02-29"], ["2023-13-01", "2023-1-1"]),
    ({"type": "string", "format": "time"}, ["12:34:56Z", "23:59:59.123+02:00"], ["24:00:00Z"]),
    ({"type": "string", "format": "date-time"}, ["2024-02-29T12:34:56Z"], ["2024-02-29"]),
    ({"type": "string", "format": "uuid"}, [str(uuid.UUID(int=2 ** 127 + 5))], ["x"]),
    ({"type": "integer", "multipleOf": 7}, [0, 7, -14, 10003], [1, 8, -13, 10004]),
    ({"type": "integer", "multipleOf": 128}, [0, 128, -1280], [64, 100]),
    ({"type": "integer", "multipleOf": 0.5}, [0, 1, -3], [0.5]),
    ({"type": "number", "multipleOf": 5}, [0, 5, -10, 125], [1, 12]),
    ({"type": "number", "multipleOf": 0.01}, [0, 1.25, -3.5, 12], [0.125, 1.001]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-c]{2}$"}, "additionalProperties": {"type": "integer"}}, [{}, {"ab": 1}, {"ab": 1, "cc": 2}], [{"x": 1}, {"abc": 1}]),
    ({"type": "object", "propertyNames": {"enum": ["k", "l"]}}, [{"k": 1}, {"l": None}], [{"m": 1}]),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, [{"k": 1}], [{"mmm": 1}]),
    ({"$defs": {"a b/c": {"const": 1}, "%": {"const": 2}}, "anyOf": [{"$ref": "#/$defs/a%20b~1c"}, {"$ref": "#/%24defs/%25"}]}, [1, 2], [3]),
    ({"type": "string", "format": "uri"}, ["http://x"], [1]),
    ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, [[], [1, 2]], [["a"]]),
    ({}, [None, 1, "a", [], {}, [{"a": [1]}]], []),
    (True, [1], []),
    ({"properties": {"deep": {"properties": {"er": {"items": {"properties": {"est": {"type": "integer"}}, "required": ["est"]}}}}}},
     [{"deep": {"er": [{"est": 1}, {"est": 2}]}}, {}, {"deep": {}}], [{"deep": {"er": [{}]}}, 1]),
    ({"pattern": "^[a-z_]+$", "minLength": 2, "maxLength": 4}, ["ab", "a_bc"], ["a", "abcde", "AB"]),
    ({"pattern": "^ab(cd)*$", "minLength": 3, "maxLength": 7}, ["abcd", "abcdcd"], ["ab", "abcdcdcd"]),
    ({"pattern": "^x", "maxLength": 3}, ["x", "xyz"], ["ax", "xyzw"]),
    ({"pattern": "^a+$|^b{2,9}$", "minLength": 3, "maxLength": 5}, ["aaa", "bbbbb"], ["aa", "bb", "bbbbbb"]),
    ({"pattern": "^[0-9]{4}$", "minLength": 1, "maxLength": 9}, ["1234"], ["123"]),
    ({"type": "string", "format": "uri", "maxLength": 3}, ["a:b", "abc"], ["abcd"]),
    ({"type": "string", "format": "ipv6"}, ["::", "::1", "fe80::1:2", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], ["1::2::3", "12345::", ":1"]),
    ({"type": "string", "format": "hostname"}, ["a", "b-c.example.com"], ["-a", "a_b", "a:80", ""]),
    ({"type": "string", "format": "uri"}, ["https://a.b/c?d=e#f", "urn:x:y"], ["/a", "not a uri", " a:b"]),
    ({"type": "string", "format": "duration"}, ["P1Y2M3DT4H5M6S", "PT5M", "P2W"], ["P", "PT", "1D"]),
    ({"patternProperties": {"^x-": {"type": "integer"}, "^[a-z]{3}$": {"type": "string"}}, "additionalProperties": False},
     [{}, {"x-a": 1}, {"abc": "d", "x-b": 2}], [{"x-a": "1"}, {"abc": 1}, {"other": 1}]),
    ({"properties": {"name": {"type": "string"}}, "patternProperties": {"^x-": {}}, "required": ["name"], "additionalProperties": False},
     [{"name": "a"}, {"name": "a", "x-y": [1]}], [{"x-y": 1}, {"name": "a", "y": 1}]),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}, [{"a": 1, "b": [None]}], [{"a": 1}, {"b": 1}]),
    ({"type": "object", "required": ["b"], "additionalProperties": {"type": "integer"}}, [{"b": 1, "c": 2}], [{"b": ""}, {"c": 1}]),
    # patterns with lengths, formats and constants
    ({"pattern": "^a+b+$", "minLength": 3, "maxLength": 5}, ["aab", "abbb", "aaabb"], ["ab", "aaabbb", "aaa"]),
    ({"pattern": "^(\\S+\\s+){0,3}\\S+$", "maxLength": 7}, ["a b", "abc def", "\u00e9\u4e2d \U0001f600"], ["abcd efg", " a"]),
    ({"pattern": "[a-z]{2}", "minLength": 3, "maxLength": 4}, ["1ab", "ab\"\\"], ["ab", "a1b2"]),
    ({"enum": ["xa", "xb", "ya", 3], "pattern": "^x"}, ["xa", "xb", 3], ["ya"]),
    ({"enum": [3, 6, 7, "a"], "multipleOf": 3}, [3, 6, "a"], [7]),
    # multiples within bounds
    ({"type": "integer", "multipleOf": 3, "minimum": -7, "maximum": 12}, [-6, -3, 0, 3, 12], [-9, 1, 15]),
    ({"type": "number", "multipleOf": 0.01, "minimum": 0, "exclusiveMaximum": 2.5}, [0, 0.5, 2.49], [2.5, 0.125, -1]),
    ({"type": "number", "minimum": 0, "maximum": 9007199254740991}, [0, 1.5, 9007199254740991], [-1, 9007199254740993]),
    # names: patterns beside properties, other members and names
    ({"patternProperties": {"^x-": {"type": "integer"}}, "properties": {"x-a": {"minimum": 3}, "b": {}}, "additionalProperties": {"type": "string"}},
     [{}, {"x-a": 3}, {"b": None, "x-c": 1, "d": "e"}, {"x-a": 4, "": ""}], [{"x-a": 2}, {"x-a": "s"}, {"x-c": "s"}, {"d": 1}]),
    ({"patternProperties": {"^a": {}}, "additionalProperties": True}, [{"a": 1, "b": 2}], []),
    ({"patternProperties": {"^a$": {"type": "null"}}, "required": ["a", "c"], "additionalProperties": {"type": "integer"}}, [{"a": None, "c": 1}], [{"a": 1, "c": 1}, {"a": None}]),
    ({"type": "object", "properties": {"ab": {"type": "integer"}, "b": {}}, "propertyNames": {"pattern": "^a", "maxLength": 2}, "additionalProperties": {"type": "null"}},
     [{}, {"ab": 1}, {"ab": 1, "ac": None}], [{"b": 1}, {"abc": None}, {"ab": None}]),
    ({"type": "object", "propertyNames": {"enum": ["ab", "b"]}, "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"type": "null"}}, [{"ab": 1}, {"b": None}], [{"a": 1}, {"c": None}]),
    # counted members
    ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False, "minProperties": 1}, [{"a": 1}, {"c": 1}, {"a": 1, "b": 2, "c": 3}], [{}]),
    ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False, "minProperties": 2, "maxProperties": 2}, [{"a": 1, "c": 1}, {"b": 1, "c": 2}], [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}]),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b", "b"], "additionalProperties": {"type": "null"}, "minProperties": 2, "maxProperties": 3},
     [{"a": 1, "b": 1}, {"b": 1, "x": None}, {"b": 1, "x": None, "y": None}], [{"b": 1}, {"a": 1}, {"a": 1, "b": 2, "x": None, "y": None}]),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}, "maxProperties": 1}, [{}, {"a": 1}, {"x": None}], [{"a": 1, "x": None}, {"x": None, "y": None}]),
    # what nothing is a value of
    ({"type": "object", "properties": {"a": {"type": "object", "enum": ["x"]}, "b": {"type": "integer"}}}, [{}, {"b": 1}], [{"a": "x"}, {"a": {}}]),
    ({"anyOf": [{"type": "string", "minLength": 3, "maxLength": 2}, {"type": "integer"}]}, [1], ["abc"]),
    ({"allOf": [{"type": "integer"}, True]}, [1], ["a"]),
    # anchors in groups, references by names
    ({"pattern": "^$|(^[a-c]{2,4}$)", "maxLength": 3}, ["", "ab", "abc"], ["a", "abcd"]),
    ({"pattern": "(^a|b$)"}, ["ax", "xb"], ["xa", "bx"]),
    ({"$id": "https://example.org/s.json", "$defs": {"x": {"$anchor": "here", "type": "integer"}, "y": {"const": "y"}}, "anyOf": [{"$ref": "#here"}, {"$ref": "https://example.org/s.json#/$defs/y"}]}, [1, "y"], ["x"]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$ref": "#n"}, "definitions": {"n": {"$id": "#n", "type": "null"}}}, [[None]], [[1]]),
    # members of what stands before "properties" come first
    ({"anyOf": [{"properties": {"z": {}}, "required": ["z"]}], "properties": {"a": {}}, "required": ["a"]}, [{"z": 1, "a": 2}], [{"a": 1}]),
    ({"properties": {"a": {}}, "allOf": [{"properties": {"z": {}}}]}, [{"a": 1, "z": 2}], []),
    ({"oneOf": [{"properties": {"k": {"const": 1}, "z": {}}, "required": ["k"]}, {"properties": {"k": {"const": 2}}, "required": ["k"]}], "properties": {"a": {}, "k": {"type": "integer"}}},
     [{"z": 1, "a": 2, "k": 1}, {"a": 1, "k": 2}], [{"k": 3}]),
    ({"allOf": [{"$ref": "#/$defs/p"}, {"properties": {"b": {}}}], "properties": {"a": {}}, "$defs": {"p": {"properties": {"z": {}}}}}, [{"z": 1, "b": 1, "a": 2}], []),
    # alternatives that exclude each other
    ({"oneOf": [{"type": "integer"}, {"enum": ["inf", "Inf"]}]}, [1, "inf"], ["x"]),
    ({"oneOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}, {"type": "object", "properties": {"b": {}}, "required": ["b"], "additionalProperties": False}]},
     [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}]),
    ({"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"], "oneOf": [{"properties": {"k": {"enum": ["a", "b"]}}}, {"properties": {"k": {"enum": ["c"]}, "v": {"type": "null"}}}]},
     [{"k": "a"}, {"k": "c", "v": None}], [{"k": "d"}, {}]),
    ({"oneOf": [{"type": "string", "pattern": "^x"}, {"anyOf": [{"type": "string", "pattern": "^[yz]"}, {"const": "a"}]}, {"type": "object", "properties": {"t": {"properties": {"u": {"const": 1}}, "type": "object", "required": ["u"]}}, "required": ["t"]},
                {"type": "object", "properties": {"t": {"properties": {"u": {"const": 2}}, "type": "object"}}}]}, ["xa", "za", "a", {"t": {"u": 1}}, {"t": {"u": 2}}, {}], ["q", {"t": {"u": 3}}]),
    ({"allOf": [{"type": "string", "x-note": 1}, {"x-note": 2, "maxLength": 2}]}, ["ab"], ["abc"]),
]

# What is refused, and what the message names.
REFUSED = [
    ({"type": "integer", "multipleOf": 1000}, "multipleOf"),
    ({"type": "number", "multipleOf": 0.3}, "multipleOf"),
    ({"type": "integer", "multipleOf": 0}, "multipleOf"),
    ({"enum": [3, 6], "multipleOf": 0.3}, "multipleOf"),
    ({"type": "object", "propertyNames": {"type": "integer"}}, "propertyNames"),
    ({"$ref": "#/$defs/a%2"}, "$ref"),
    ({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}, "#/properties/a"),
    ({"not": {}}, "not"),
    ({"type": "array", "contains": {}}, "contains"),
    ({"type": "object", "propertyNames": False}, "propertyNames"),
    ({"type": "object", "minProperties": 2}, "minProperties"),
    ({"type": "object", "minProperties": 3, "maxProperties": 2}, "at least 3 and at most 2"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"prefixItems": [{"type": "null"}], "unevaluatedItems": False}, "unevaluatedItems"),
    ({"allOf": [{"prefixItems": [{"type": "string"}]}, {"items": {"type": "integer"}}]}, "prefixItems"),
    ({"const": "ab", "pattern": "^x"}, "constant"),
    ({"const": "ab", "pattern": "("}, "group"),
    ({"enum": [1, 2], "const": 3}, "constant"),
    ({"enum": [1, 2], "minimum": 3}, "constant"),
    ({"type": "strin"}, "strin"),
    ({"type": "string", "format": 3}, "format"),
    ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
    ({"type": "string", "pattern": "a(b"}, "group"),
    ({"type": "string", "pattern": "[b"}, "class"),
    ({"type": "string", "pattern": "\\p{L}"}, "escape"),
    ({"type": "string", "pattern": "(" * 5000}, "groups"),
    ({"type": "string", "pattern": "a**"}, "repetition"),
    ({"type": "string", "minLength": 5, "maxLength": 2}, "maxLength"),
    ({"type": "string", "minLength": -1}, "minLength"),
    ({"type": "integer", "minimum": 5, "maximum": 2}, "no number"),
    ({"type": "integer", "minimum": "x"}, "minimum"),
    ({"type": "number", "minimum": 1e-9}, "bound"),
    ({"$ref": "https://example.org/schema"}, "$ref"),
    ({"$ref": "#/$defs/none"}, "#/$defs/none"),
    ({"$ref": "#"}, "begins with itself"),
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "begins with itself"),
    ({"allOf": [{"$ref": "#"}]}, "nested"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "without an end"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "\"a\""),
    ({"patternProperties": {"^a": {"type": "integer"}, "b$": {}}}, "may match the same name"),
    ({"patternProperties": {"(?=a)": {}}}, "pattern"),
    ({"pattern": "^a+b+$", "minLength": 5000}, "4096 states"),
    ({"pattern": "^a{3}$", "minLength": 4}, "no text"),
    ({"type": "object", "properties": 1}, "properties"),
    ({"enum": []}, "enum"),
    ({"enum": [1], "type": "string"}, "constant"),
    ({"enum": [2 ** 60]}, "2^53"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"oneOf": [{"properties": {"t": {"const": "a"}}, "required": ["t"], "type": ["object", "null"]}, {"properties": {"t": {"const": "b"}}, "required": ["t"], "type": ["object", "null"]}]}, "oneOf"),
    ({"oneOf": [{"properties": {"t": {"const": "a"}}}, {"type": "string"}]}, "oneOf"),
    ({"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "b$"}]}, "oneOf"),
    ({"allOf": [{"type": "integer"}, {"type": "string"}]}, "allOf"),
    ({"if": {"type": "null"}, "then": False}, "if"),
    ([1], "must be an object"),
    (False, "allows no value"),
    ({"properties": {"a": {"enum": ["x"], "type": "object"}}, "required": ["a"]}, "#/properties/a: no constant"),
    ({"allOf": [{"type": "string"}, False]}, "allows no value"),
    ({"type": []}, "no type"),
    ({"properties": {"a": {}, "b": {}}, "maxProperties": 1, "required": ["a", "b"]}, "no text"),
    ({"properties": {"a": {}}, "additionalProperties": True, "minProperties": 3}, "minProperties"),
    ({"type": "object", "properties": {f"p{i}": {} for i in range(3000)}}, "properties"),
]

# Grammars; texts that they have; texts that they do not have.
GBNF = [
    ('root ::= "yes" | "no"', ["yes", "no"], ["", "yesno", "y"]),
    ('# a list\nroot ::= item ("," ws item)*\nitem ::= [a-z_0-9]+ # names\nws ::= [ \\t\\n]*\n', ["a", "a, b,\n c_1"], ["", "a,", "A"]),
    ('root  ::= (expr "=" ws term "\\n")+\nexpr  ::= term ([-+*/] term)*\nterm  ::= ident | num | "(" ws expr ")" ws\n'
     'ident ::= [a-z] [a-z0-9_]* ws\nnum   ::= [0-9]+ ws\nws    ::= [ \\t\\n]*\n', ["1+2*(a-3) = b\n", "x=1\ny=2\n"], ["1+=2\n", "x=1"]),
    ('root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+\nmove ::= (pawn | nonpawn | castle) [+#]?\n'
     'nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]\npawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?\ncastle ::= "O-O" "-O"?\n',
     ["1. e4 e5\n2. Nf3 Nc6\n"], ["1. e4 e5\n", "1. e9 e5\n2. e4 e5\n"]),
    ('root ::= "a"{3} "b"{2,} "c"{,2} "d"{1,3}', ["aaabbd", "aaabbbbccddd"], ["aabbd", "aaabbcccd", "aaabb"]),
    ('root ::= [^"\\\\]{2,200} "\\"" .', ["ab\"c", "\u00e9\u4e2d\"\U0001f600"], ["a\"c", "ab\""]),
    ('root ::= "\\x41\\u00e9\\U0001F600" [\\u3040-\\u309F]', ["A\u00e9\U0001f600\u3042"], ["A\u00e9\U0001f600a"]),
    ('root ::=\n  "{" (\n    k ":" v\n    ("," k ":" v)*\n  )? "}"\nk ::= "k"\nv ::=\n    "1"\n  | root\n  | "2"', ["{}", "{k:1,k:{k:2}}"], ["{k:}"]),
    ('root ::= "(" root ")" | ""', ["", "((()))"], ["(()"]),
    ('root ::= "x" root | "y"', ["xxxy", "x" * 2000 + "y"], ["xx"]),
    ('root ::= (("a"?)* ("b"*)+)* "."', [".", "aabba."], ["c."]),
    ('root ::= "a" ("b" | "c" bad)\nbad ::= "x" bad', ["ab"], ["ac"]),
]
GBNF_REFUSED = [
    ('root ::= root "a" | "b"', "left recursion"),
    ('root ::= a "x"\na ::= b? a\nb ::= "b"', "left recursion"),
    ('root ::= "a" other', "other"),
    ('start ::= "a"', "root"),
    ('root ::= "a', "closing quote"),
    ('root ::= [a', "lacks its"),
    ('root ::= ("a"', "lacks its"),
    ('root ::= "a")', "without a bracket"),
    ('root ::= "\\q"', "escape"),
    ('root ::= "a"{2,1}', "ends before"),
    ('root ::= "a"{99999999999}', "billion"),
    ('root ::= "a"\nroot ::= "b"', "second rule"),
    ('root ::= "a" root', "without an end"),
    ('root ::= <[1000]>', "tokens"),
    ('root ::= ' + '(' * 500 + '"a"' + ')' * 500, "brackets"),
    ('root ::= ("a"? "b"?){1000000}', "empty"),
    ('root ::= "a" ::= "b"', "expected"),
    ('', "root"),
    ('root ::= ' + ' | '.join(f'r{i}' for i in range(20000)) + '\n', "too large"),
    ("\n".join(f'r{i} ::= r{i + 1}' for i in range(12000)) + '\nr12000 ::= "a"\nroot ::= r0', "begin with each other"),
]
# Hostile, but well formed: they must end in a text or a message soon.
HOSTILE_GBNF = [
    'root ::= ((("a"{0,1000} "b"{0,1000}){0,1000}) "a"{0,1000}){0,1000} "c"',
    'root ::= ("a" | "a" root | "a" root root){1,100000}',
    'root ::= ' + ' | '.join('"a"{%d}' % i for i in range(1, 300)),
    'root ::= ("a"* "a"* "a"* "a"* "a"* "a"* "a"*)* "b"',
    'root ::= [a-z]{1000000000}',
]


class Tool:
    def __init__(self):
        self.process = subprocess.Popen([BUILD / "tests/tool_grammar", VOCABULARY], text=True, encoding="utf-8",
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def require(condition, *what):
    if not condition:
        raise AssertionError(*what)


def styles(document):
    """The ways in which a form lets a document be written."""
    plain = {"ensure_ascii": False}
    return {json.dumps(document, separators=(",", ":"), **plain), json.dumps(document, **plain), json.dumps(document, indent=2, **plain)}


# White space of ECMAScript's expressions, which are those of JSON Schema; Python has others.
SPACE = "\\t-\\r \\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"


def is_valid(schema, document):
    if "nullable" in str(schema) or '"multipleOf": 0.' in json.dumps(schema):  # to jsonschema, 2.49 is no multiple of 0.01
        return True
    if isinstance(schema, dict) and "pattern" in schema:
        pattern = schema["pattern"].replace("[^\\s]", f"[^{SPACE}]").replace("\\s", f"[{SPACE}]").replace("\\w", "[a-zA-Z0-9_]")
        schema = {**schema, "pattern": pattern}
    return jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).is_valid(document)


def check_made(schema, reply):
    for text in reply["made"]:
        if text.endswith(" (cut)"):
            continue
        require(is_valid(schema, json.loads(text)), schema, text)


def check_cases(tool):
    for seed, (schema, valid, invalid) in enumerate(CASES):
        texts = [text for document in valid for text in sorted(styles(document))]
        wrong = [text for document in invalid for text in sorted(styles(document))]
        for document in valid:
            require(is_valid(schema, document) or document is None, "the case is wrong", schema, document)
        wrong += [text + "x" for text in texts] + [text[:-1] for text in texts if text[-1:] in '"]}']
        reply = tool.ask(schema=schema, accept=texts + wrong, make=8, seed=100 * seed)
        require("error" not in reply, schema, reply)
        for text, accepted in zip(texts + [""] * 0, reply["accepted"]):
            require(accepted, "refused", schema, text)
        for text, accepted in zip(wrong, reply["accepted"][len(texts):]):
            require(not accepted, "accepted", schema, text)
        check_made(schema, reply)


def check_grammars(tool):
    for text, right, wrong in GBNF:
        reply = tool.ask(gbnf=text, accept=right + wrong, make=3, seed=1)
        require("error" not in reply, text, reply)
        require(reply["accepted"] == [True] * len(right) + [False] * len(wrong), text, reply["accepted"])
        made = [m for m in reply["made"] if not m.endswith(" (cut)")]
        require(all(tool.ask(gbnf=text, accept=made)["accepted"]), text, made)


def check_refused(tool):
    for schema, word in REFUSED:
        reply = tool.ask(schema=schema)
        require(word in reply.get("error", ""), word, reply)
    for text, word in GBNF_REFUSED:
        reply = tool.ask(gbnf=text)
        require(word in reply.get("error", ""), text[:80], word, reply)
    for text in HOSTILE_GBNF:
        tool.ask(gbnf=text, make=1, seed=1)  # it answers
    deep = {"type": "integer"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    require("nested" in tool.ask(schema=deep)["error"])


def random_schema(source, depth):
    kind = source.choice(["integer", "number", "string", "enum", "boolean"] + ["object", "array", "anyOf"] * (depth > 0))
    if kind == "integer":
        low = source.randint(-2000, 2000)
        return {"type": kind, "minimum": low, "maximum": low + source.randint(0, 3000)}
    if kind == "number":
        low = source.randint(-500, 500) / source.choice([1, 4, 10, 100])
        high = low + source.randint(1, 900) / source.choice([1, 10, 100])
        return {"type": kind, source.choice(["minimum", "exclusiveMinimum"]): low, source.choice(["maximum", "exclusiveMaximum"]): round(high, 6)}
    if kind == "string":
        low = source.randint(0, 4)
        return {"type": kind, "minLength": low, "maxLength": low + source.randint(0, 90)}
    if kind == "enum":
        return {"enum": [source.choice(["a", "ab", "abc", "b\u00e9", "\"", 1, 12, -3.5, True, None, [1, "x"]]) for _ in range(4)]}
    if kind == "object":
        names = [f"n{i}" for i in range(source.randint(1, 4))]
        schema = {"type": kind, "properties": {n: random_schema(source, depth - 1) for n in names},
                  "required": [n for n in names if source.random() < 0.6]}
        schema["additionalProperties"] = source.choice([False, {"type": "boolean"}])
        return schema
    if kind == "array":
        low = source.randint(0, 2)
        return {"type": kind, "items": random_schema(source, depth - 1), "minItems": low, "maxItems": low + source.randint(0, 3)}
    return {kind: [random_schema(source, depth - 1) for _ in range(2)]} if kind == "anyOf" else {"type": kind}


def check_random(tool):
    source = random.Random(5)
    for seed in range(60):
        schema = random_schema(source, 3)
        reply = tool.ask(schema=schema, make=3, seed=seed)
        require("error" not in reply, schema, reply)
        check_made(schema, reply)


def main():
    tool = Tool()
    check_cases(tool)
    check_grammars(tool)
    check_refused(tool)
    check_random(tool)
    tool.process.stdin.close()
    require(tool.process.wait() == 0, "tool_grammar failed")


if __name__ == "__main__":
    sys.exit(main())
