"""What every provider in Python needs: errors with a kind, requests, and a wrapper for stray exceptions.

An exception that leaves an export is a trap without a word; `contract` turns it into `internal` with its text.
"""

import functools
import json
from dataclasses import dataclass
from typing import Any, Optional

from componentize_py_types import Err
from wit_world.imports import http, log
from wit_world.imports import types as t
from wit_world.imports.faults import FaultKind

FAULTS = {
    FaultKind.UNKNOWN_CONNECTION: (t.ErrorKind_ConfigMissing, "ConnectionNotGranted"),
    FaultKind.NOT_CONFIGURED: (t.ErrorKind_ConfigMissing, "ConnectionNotConfigured"),
    FaultKind.CREDENTIAL: (t.ErrorKind_Unauthorized, "CredentialMissing"),
    FaultKind.DENIED: (t.ErrorKind_ConfigMissing, "Denied"),
    FaultKind.DNS: (t.ErrorKind_Transient, "DnsFailed"),
    FaultKind.UNREACHABLE: (t.ErrorKind_Transient, "Unreachable"),
    FaultKind.TLS: (t.ErrorKind_Unauthorized, "TlsFailed"),
    FaultKind.AUTH_REFUSED: (t.ErrorKind_Unauthorized, "AuthRefused"),
    FaultKind.TIMED_OUT: (t.ErrorKind_Transient, "TimedOut"),
    FaultKind.LOST: (t.ErrorKind_Transient, "ConnectionLost"),
    FaultKind.TOO_LARGE: (t.ErrorKind_Internal, "TooLarge"),
    FaultKind.BUSY: (t.ErrorKind_Transient, "Busy"),
    FaultKind.PROTOCOL: (t.ErrorKind_Transient, "ProtocolError"),
}


def refused(kind: t.ErrorKind, message: str, reason: Optional[str] = None, target: Optional[str] = None) -> Err:
    """An error of the contract, to be raised."""
    return Err(t.Error(kind, message, reason, target, None))


@dataclass
class Answer:
    """What a backend answered; `change`: to a request that changes it."""

    status: int
    json: Any
    headers: list
    change: bool


def request(connection: str, method: str, path: str, query: Optional[list] = None, body: Any = None) -> Answer:
    """Sends a request over a connection."""
    change = method != "GET"
    headers = [] if body is None else [("content-type", b"application/json")]
    data = None if body is None else json.dumps(body).encode()
    try:
        answer = http.send(connection, http.HttpRequest(method, path, query or [], headers, data, 10_000))
    except Err as error:
        fault = error.value
        kind, reason = FAULTS.get(fault.kind, (t.ErrorKind_Transient, "IoFailed"))
        raise refused(t.ErrorKind_UnknownOutcome() if change and fault.sent else kind(), fault.message, reason)
    try:
        found = json.loads(answer.body) if answer.body else None
    except ValueError:
        found = None
        if answer.status < 300:
            kind = t.ErrorKind_UnknownOutcome() if change else t.ErrorKind_Internal()
            raise refused(kind, f"{method} {path}: the answer is no JSON", "UnexpectedAnswer")
    return Answer(answer.status, found, answer.headers, change)


def unexpected(answer: Answer) -> Err:
    """The error of an answer that the provider has no rule for."""
    said = answer.json.get("message") if isinstance(answer.json, dict) else None
    said = said or "no reason given"
    if answer.status in (401, 403):
        return refused(t.ErrorKind_Unauthorized(), said, "AuthRefused")
    if answer.status == 429:
        after = [value.decode() for name, value in answer.headers if name.lower() == "retry-after"]
        seconds = int(after[0]) if after and after[0].isdigit() else None
        return refused(t.ErrorKind_RateLimited(seconds), said, "RateLimited")
    if answer.change and answer.status in (502, 504):
        return refused(t.ErrorKind_UnknownOutcome(), said, "ServerError")
    if answer.status >= 500:
        return refused(t.ErrorKind_Transient(), said, "ServerError")
    return refused(t.ErrorKind_Internal(), f"unexpected status {answer.status}: {said}", "UnexpectedAnswer")


def contract(function):
    """Makes an export of a method."""

    @functools.wraps(function)
    def wrapped(*arguments):
        try:
            return function(*arguments)
        except Err:
            raise
        except Exception as error:
            text = f"{function.__name__}: {type(error).__name__}: {error}"
            log.write(log.Level.ERROR, text, [("panic", "true")])
            if function.__name__ == "describe":
                raise
            if function.__name__ == "validate":
                raise Err(t.Invalid([t.FieldError("", text)]))
            raise refused(t.ErrorKind_Internal(), text)

    return wrapped
