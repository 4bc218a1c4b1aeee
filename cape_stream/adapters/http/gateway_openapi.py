"""The gateway's OpenAPI document; a test holds it against the routes and the field checks."""

from typing import Any

JSON = "application/json"
AVRO = "application/vnd.cape.avro"

_INT64: dict[str, Any] = {"type": "integer", "format": "int64", "minimum": 0}
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}

_OUTPUT = {
    "type": "object",
    "required": ["sequence", "output"],
    "additionalProperties": False,
    "properties": {"sequence": _INT64, "output": {"description": "Any JSON value."}},
}
_FAILURE = {
    "type": "object",
    "required": ["sequence"],
    "additionalProperties": False,
    "properties": {
        "sequence": _INT64,
        "failure_class": {
            "enum": ["transient", "throttled", "timeout", "invalid", "permanent", "bug"],
            "default": "transient",
        },
        "error": {"type": "string", "description": "For people; 300 characters are kept."},
        "retry_after_ms": {**_INT64, "nullable": True},
    },
}
_STATUS = {
    "type": "object",
    "description": "A report; every field but the last six is copied from the job.",
    "required": [
        *("domain", "topology", "lambda_id", "partition", "epoch", "subject", "job_id", "attempt"),
        "token",
    ],
    "additionalProperties": False,
    "properties": {
        "domain": _TEXT,
        "topology": _TEXT,
        "lambda_id": _TEXT,
        "partition": _INT64,
        "epoch": _INT64,
        "subject": _TEXT,
        "job_id": _TEXT,
        "attempt": _INT64,
        "token": {**_TEXT, "description": "The job's, unchanged."},
        "kind": {"enum": ["results", "heartbeat", "handed_back"], "default": "results"},
        "queued_ms": _INT64,
        "done": {"type": "array", "items": _INT64},
        "outputs": {"type": "array", "items": _OUTPUT},
        "failures": {"type": "array", "items": _FAILURE},
    },
}
_PING = {
    "type": "object",
    "required": ["subject"],
    "additionalProperties": False,
    "properties": {
        "subject": _TEXT,
        "latest": {**_INT64, "nullable": True, "description": "Newest sequence id, if known."},
        "domain": {**_TEXT, "description": "May stand in the query instead."},
    },
}
_VERDICTS = {
    "type": "object",
    "required": ["verdicts"],
    "properties": {
        "verdicts": {
            "type": "array",
            "description": "One an item, in order.",
            "items": {
                "type": "object",
                "required": ["verdict"],
                "properties": {
                    "verdict": {"enum": ["accepted", "refused", "retry"]},
                    "code": {"type": "string"},
                    "reason": {"type": "string"},
                },
            },
        }
    },
}
_ERROR = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
}


def _named(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _body(item: str) -> dict[str, Any]:
    one_or_more = {"oneOf": [_named(item), {"type": "array", "items": _named(item)}]}
    framed = {
        "type": "string",
        "format": "binary",
        "description": "Records in Confluent's wire format, each behind its length: 4 bytes, big"
        " endian.",
    }
    return {"required": True, "content": {JSON: {"schema": one_or_more}, AVRO: {"schema": framed}}}


def _answers() -> dict[str, Any]:
    verdicts = {"content": {JSON: {"schema": _named("Verdicts")}}}
    error = {"content": {JSON: {"schema": _named("Error")}}}
    return {
        "200": {"description": "Everything is in the log.", **verdicts},
        "207": {"description": "Some of it is in the log.", **verdicts},
        "422": {"description": "Nothing of it can ever be taken.", **verdicts},
        "503": {"description": "Send again what is marked `retry`.", **verdicts},
        "400": {"description": "The body is empty, or cannot be read.", **error},
        "401": {"description": "The ping token is missing.", **error},
        "408": {"description": "The body took too long.", **error},
        "413": {"description": "The body is too large, or has too many items.", **error},
        "415": {"description": "The body is of no known type.", **error},
    }


OPENAPI: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "cape gateway", "version": "1"},
    "paths": {
        "/v1/job-statuses": {
            "post": {
                "summary": "Report what became of jobs.",
                "requestBody": _body("JobStatus"),
                "responses": _answers(),
            }
        },
        "/v1/pings": {
            "post": {
                "summary": "Say that subjects have news.",
                "parameters": [
                    {"name": "domain", "in": "query", "required": False, "schema": _TEXT}
                ],
                "requestBody": _body("Ping"),
                "responses": _answers(),
            }
        },
        "/openapi.json": {
            "get": {
                "summary": "This document.",
                "responses": {"200": {"description": "OpenAPI 3.0."}},
            }
        },
    },
    "components": {
        "schemas": {"JobStatus": _STATUS, "Ping": _PING, "Verdicts": _VERDICTS, "Error": _ERROR}
    },
}
