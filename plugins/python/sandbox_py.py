"""A provider for the sandbox cloud in Python, one function of the contract after the other."""

import json
from typing import List, Optional

import wit_world.exports
from componentize_py_types import Err
from sdk import contract, refused, request, unexpected
from wit_world.imports import types as t

CONNECTION = "cloud"
POLL_AFTER_MS = 100
STATES = {
    "booting": t.State_Creating,
    "running": t.State_Running,
    "stopped": t.State_Stopped,
    "deleting": t.State_Deleting,
}
SCHEMA = json.dumps(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "bootMs": {
                "type": "integer",
                "minimum": 0,
                "maximum": 3_600_000,
                "description": "How long an instance boots, in milliseconds.",
            }
        },
    }
)


def name_of(identity: t.Identity) -> str:
    """Follows from the identity alone, so that a repeated create meets what the first one made."""
    owner = identity.owner
    return f"px-{owner.installation[:8]}-{owner.proxy_uid}-{identity.incarnation}".lower()


class Place:
    """`ZONE@CLOUDID`, as `place` chose it."""

    def __init__(self, identity: t.Identity):
        self.zone, _, self.cloud_id = identity.placement.partition("@")
        if not self.zone or not self.cloud_id:
            raise refused(
                t.ErrorKind_ConfigMissing(), f"placement {identity.placement!r} is not ZONE@CLOUDID", "PlacementUnknown"
            )
        self.path = f"/v1/zones/{self.zone}/instances/{name_of(identity)}"

    def same_cloud(self, found: str) -> None:
        """Another cloud at the same address is not the one where the instance was placed."""
        if found != self.cloud_id:
            text = f"cloud {found} answers where cloud {self.cloud_id} is expected"
            raise refused(t.ErrorKind_ConfigMissing(), text, "BackendChanged", self.zone)


def cloud() -> dict:
    answer = request(CONNECTION, "GET", "/v1/cloud")
    if answer.status != 200:
        raise unexpected(answer)
    return answer.json


def instance_of(found: dict) -> t.Instance:
    placement = f"{found['zone']}@{found['cloudId']}"
    said = found.get("message") or f"the cloud calls it {found['state']}"
    if found["state"] in STATES:
        state = STATES[found["state"]]()
    else:
        state = t.State_Failed(said) if found["state"] == "failed" else t.State_Unknown(said)
    owner = found["owner"]
    moving = isinstance(state, (t.State_Creating, t.State_Deleting))
    return t.Instance(
        provider_id=f"sandbox://{placement}/{found['name']}",
        backend_id=found["id"],
        placement=placement,
        state=state,
        addresses=[t.Address(found["host"], t.Reach.EXTERNAL)] if found.get("port") else [],
        port=found.get("port"),
        owner=t.Owner(owner["installation"], owner["proxyUid"], owner.get("namespace", ""), owner.get("name", "")),
        incarnation=found.get("incarnation"),
        spec_hash=found.get("specHash"),
        created_at=found.get("createdAt"),
        message=found.get("message") or None,
        login_secret=None,
        poll_after_ms=POLL_AFTER_MS if moving else None,
        continuation=None,
        extra=[],
    )


def look_up(identity: t.Identity) -> Optional[dict]:
    """The instance, or None on positive evidence of its absence."""
    at = Place(identity)
    answer = request(CONNECTION, "GET", at.path)
    if answer.status == 404 and answer.json.get("error") == "no_such_instance":
        at.same_cloud(cloud()["cloudId"])
        return None
    if answer.status == 404:
        raise refused(t.ErrorKind_ConfigMissing(), f"the cloud has no zone {at.zone}", "ZoneMissing", at.zone)
    if answer.status != 200:
        raise unexpected(answer)
    at.same_cloud(answer.json["cloudId"])
    owner = answer.json["owner"]
    if (owner["installation"], owner["proxyUid"]) != (identity.owner.installation, identity.owner.proxy_uid):
        text = f"{answer.json['name']} belongs to another owner; it was not touched"
        raise refused(t.ErrorKind_Foreign(), text, target=at.zone)
    return answer.json


class Provider(wit_world.exports.Provider):
    @contract
    def describe(self) -> t.Description:
        need = t.ConnectionNeed(CONNECTION, "http", True, "API of the sandbox cloud, with its bearer token")
        summary = "Forward proxies in the sandbox cloud, out of Python"
        return t.Description("sandbox-py", "0.1.0", summary, SCHEMA, SCHEMA, [need], [], [], [])

    @contract
    def validate(self, config: str, request: Optional[t.Request]) -> None:
        errors = []
        for field in ("image", "size"):
            if request is not None and getattr(request, field) is not None:
                text = "the sandbox cloud has no such catalogue; leave the field out"
                errors.append(t.FieldError(f"/{field}", text))
        if errors:
            raise Err(t.Invalid(errors))

    @contract
    def place(self, config: str, request: t.Request, avoid: List[str]) -> str:
        found = cloud()
        fits = [
            zone
            for zone in found["zones"]
            if zone["healthy"]
            and zone["instances"] < zone["capacity"]
            and f"{zone['name']}@{found['cloudId']}" not in avoid
            and request.location in (None, zone["name"])
        ]
        if not fits:
            raise refused(t.ErrorKind_Exhausted(), "no zone takes the instance", "NoZone")
        best = min(fits, key=lambda zone: zone["instances"] / zone["capacity"])
        return f"{best['name']}@{found['cloudId']}"

    @contract
    def create(self, config: str, wanted: t.Request) -> t.Instance:
        identity = wanted.identity
        at = Place(identity)
        # Before the change: a cloud started anew must not get what belongs to the old one.
        at.same_cloud(cloud()["cloudId"])
        owner = identity.owner
        body = {
            "owner": {
                "installation": owner.installation,
                "proxyUid": owner.proxy_uid,
                "namespace": owner.namespace,
                "name": owner.name,
            },
            "incarnation": identity.incarnation,
            "specHash": wanted.spec_hash,
            "protocol": wanted.protocol,
            "allowTargets": wanted.must_reach,
        }
        if wanted.login is not None:
            body |= {"username": wanted.login.username, "password": wanted.login.password}
        boot_ms = json.loads(wanted.parameters).get("bootMs", json.loads(config).get("bootMs"))
        if boot_ms is not None:
            body["bootMs"] = boot_ms
        made = request(CONNECTION, "PUT", at.path, body=body)
        if made.status == 403 and made.json.get("error") == "quota":
            raise refused(t.ErrorKind_Exhausted(), made.json["message"], "QuotaExceeded", at.zone)
        if made.status == 409:
            text = f"the name {name_of(identity)} is taken by another owner; it was not touched"
            raise refused(t.ErrorKind_Foreign(), text, target=at.zone)
        if made.status not in (200, 201):
            raise unexpected(made)
        if made.json["state"] != "stopped":
            return instance_of(made.json)
        started = request(CONNECTION, "POST", f"{at.path}/start")
        if started.status != 200:
            raise unexpected(started)
        return instance_of(started.json)

    @contract
    def get(self, config: str, identity: t.Identity) -> t.Presence:
        found = look_up(identity)
        return t.Presence_Absent() if found is None else t.Presence_Present(instance_of(found))

    @contract
    def delete(self, config: str, identity: t.Identity) -> t.Deletion:
        found = look_up(identity)
        if found is None:
            return t.Deletion_Gone()
        if found["state"] != "deleting":
            answer = request(CONNECTION, "DELETE", Place(identity).path)
            if answer.status not in (202, 404):
                raise unexpected(answer)
        # Gone is only what the next call's look-up does not find.
        return t.Deletion_InProgress(t.Progress(None, POLL_AFTER_MS, None))

    @contract
    def list_instances(self, config: str, installation: str, page: Optional[str]) -> t.Page:
        query = [("installation", installation), ("limit", "100")]
        if page is not None:
            query.append(("cursor", page))
        answer = request(CONNECTION, "GET", "/v1/instances", query)
        if answer.status != 200:
            raise unexpected(answer)
        ours = [one for one in answer.json["instances"] if one["owner"]["installation"] == installation]
        return t.Page([instance_of(one) for one in ours], answer.json.get("next"))

    @contract
    def check(self, config: str) -> List[t.Finding]:
        findings = []
        for zone in cloud()["zones"]:
            full = zone["instances"] >= zone["capacity"]
            reason = "ZoneFull" if full else "Ok"
            reason = reason if zone["healthy"] else "ZoneUnhealthy"
            findings.append(t.Finding(zone["name"], reason == "Ok", reason, zone.get("message") or ""))
        return findings
