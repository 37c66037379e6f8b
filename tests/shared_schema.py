"""The JSON Schema of scenarios, made once for all tests of a process that only read it."""

from functools import cache

from hetsim.scenario.schema.whole import json_schema

shared_schema = cache(json_schema)
