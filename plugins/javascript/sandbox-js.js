// A provider for the sandbox cloud in JavaScript, one function of the contract after the other.

import { provider as contract, Refused, request, unexpected } from './sdk.js';

const CONNECTION = 'cloud';
const POLL_AFTER_MS = 100;
const STATES = { booting: 'creating', running: 'running', stopped: 'stopped', deleting: 'deleting' };
const BOOT_MS = { type: 'integer', minimum: 0, maximum: 3_600_000, description: 'How long an instance boots, in milliseconds.' };
const SCHEMA = JSON.stringify({
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  type: 'object',
  additionalProperties: false,
  properties: { bootMs: BOOT_MS },
});

/** Names follow from the identity alone, so that a repeated create meets what the first one made. */
function nameOf({ owner, incarnation }) {
  return `px-${owner.installation.slice(0, 8)}-${owner.proxyUid}-${incarnation}`.toLowerCase();
}

/** `ZONE@CLOUDID`, as `place` chose it. */
function placeOf(identity) {
  const [zone, cloudId] = identity.placement.split('@');
  if (!zone || !cloudId) {
    throw new Refused('config-missing', `placement ${JSON.stringify(identity.placement)} is not ZONE@CLOUDID`, {
      reason: 'PlacementUnknown',
    });
  }
  return { zone, cloudId, path: `/v1/zones/${zone}/instances/${nameOf(identity)}` };
}

function cloud() {
  const answer = request(CONNECTION, 'GET', '/v1/cloud');
  if (answer.status !== 200) throw unexpected(answer);
  return answer.json;
}

/** Another cloud at the same address is not the one where the instance was placed. */
function sameCloud(at, found) {
  if (found !== at.cloudId) {
    throw new Refused('config-missing', `cloud ${found} answers where cloud ${at.cloudId} is expected`, {
      reason: 'BackendChanged',
      target: at.zone,
    });
  }
}

function instanceOf(found) {
  const tag = STATES[found.state] ?? (found.state === 'failed' ? 'failed' : 'unknown');
  const val = tag === 'failed' || tag === 'unknown' ? found.message || `the cloud calls it ${found.state}` : undefined;
  const placement = `${found.zone}@${found.cloudId}`;
  return {
    providerId: `sandbox://${placement}/${found.name}`,
    backendId: found.id,
    placement,
    state: val === undefined ? { tag } : { tag, val },
    addresses: found.port ? [{ host: found.host, reach: 'external' }] : [],
    port: found.port ?? undefined,
    owner: found.owner,
    incarnation: found.incarnation ?? undefined,
    specHash: found.specHash ?? undefined,
    createdAt: found.createdAt === undefined ? undefined : BigInt(found.createdAt),
    message: found.message || undefined,
    loginSecret: undefined,
    pollAfterMs: tag === 'creating' || tag === 'deleting' ? POLL_AFTER_MS : undefined,
    continuation: undefined,
    extra: [],
  };
}

/** The instance, or undefined on positive evidence of its absence. */
function lookUp(identity) {
  const at = placeOf(identity);
  const answer = request(CONNECTION, 'GET', at.path);
  if (answer.status === 404 && answer.json?.error === 'no_such_instance') {
    sameCloud(at, cloud().cloudId);
    return undefined;
  }
  if (answer.status === 404) {
    throw new Refused('config-missing', `the cloud has no zone ${at.zone}`, { reason: 'ZoneMissing', target: at.zone });
  }
  if (answer.status !== 200) throw unexpected(answer);
  sameCloud(at, answer.json.cloudId);
  const { owner } = answer.json;
  if (owner.installation !== identity.owner.installation || owner.proxyUid !== identity.owner.proxyUid) {
    throw new Refused('foreign', `${answer.json.name} belongs to another owner; it was not touched`, { target: at.zone });
  }
  return answer.json;
}

export const provider = contract({
  describe() {
    return {
      name: 'sandbox-js',
      version: '0.1.0',
      summary: 'Forward proxies in the sandbox cloud, out of JavaScript',
      configSchema: SCHEMA,
      parametersSchema: SCHEMA,
      connections: [{ name: CONNECTION, kind: 'http', required: true, doc: 'API of the sandbox cloud, with its bearer token' }],
      connectionPointers: [],
      capabilities: [],
      extra: [],
    };
  },

  validate(_config, request) {
    const errors = [];
    for (const field of ['image', 'size']) {
      if (request?.[field] !== undefined) {
        errors.push({ pointer: `/${field}`, message: 'the sandbox cloud has no such catalogue; leave the field out' });
      }
    }
    if (errors.length > 0) throw { errors };
  },

  place(_config, request, avoid) {
    const { cloudId, zones } = cloud();
    const fits = (zone) =>
      zone.healthy && zone.instances < zone.capacity && !avoid.includes(`${zone.name}@${cloudId}`) &&
      (request.location === undefined || request.location === zone.name);
    const best = zones.filter(fits).sort((a, b) => a.instances / a.capacity - b.instances / b.capacity)[0];
    if (best === undefined) throw new Refused('exhausted', 'no zone takes the instance', { reason: 'NoZone' });
    return `${best.name}@${cloudId}`;
  },

  create(config, wanted) {
    const { identity, login } = wanted;
    const at = placeOf(identity);
    // Before the change: a cloud started anew must not get what belongs to the old one.
    sameCloud(at, cloud().cloudId);
    const body = {
      owner: identity.owner,
      incarnation: identity.incarnation,
      specHash: wanted.specHash,
      protocol: wanted.protocol,
      username: login?.username,
      password: login?.password,
      allowTargets: wanted.mustReach,
      bootMs: JSON.parse(wanted.parameters).bootMs ?? JSON.parse(config).bootMs,
    };
    const made = request(CONNECTION, 'PUT', at.path, { body });
    if (made.status === 403 && made.json?.error === 'quota') {
      throw new Refused('exhausted', made.json.message, { reason: 'QuotaExceeded', target: at.zone });
    }
    if (made.status === 409) {
      throw new Refused('foreign', `the name ${nameOf(identity)} is taken by another owner; it was not touched`, {
        target: at.zone,
      });
    }
    if (made.status !== 200 && made.status !== 201) throw unexpected(made);
    if (made.json.state !== 'stopped') return instanceOf(made.json);
    const started = request(CONNECTION, 'POST', `${at.path}/start`);
    if (started.status !== 200) throw unexpected(started);
    return instanceOf(started.json);
  },

  get(_config, identity) {
    const found = lookUp(identity);
    return found === undefined ? { tag: 'absent' } : { tag: 'present', val: instanceOf(found) };
  },

  delete(_config, identity) {
    const found = lookUp(identity);
    if (found === undefined) return { tag: 'gone' };
    if (found.state !== 'deleting') {
      const answer = request(CONNECTION, 'DELETE', placeOf(identity).path);
      if (answer.status !== 202 && answer.status !== 404) throw unexpected(answer);
    }
    // Gone is only what the next call's look-up does not find.
    return { tag: 'in-progress', val: { message: undefined, pollAfterMs: POLL_AFTER_MS, continuation: undefined } };
  },

  listInstances(_config, installation, page) {
    const query = [['installation', installation], ['limit', '100']];
    if (page !== undefined) query.push(['cursor', page]);
    const answer = request(CONNECTION, 'GET', '/v1/instances', { query });
    if (answer.status !== 200) throw unexpected(answer);
    const ours = answer.json.instances.filter((one) => one.owner.installation === installation);
    return { instances: ours.map(instanceOf), next: answer.json.next ?? undefined };
  },

  check(_config) {
    return cloud().zones.map(({ name, healthy, instances, capacity, message }) => {
      const reason = !healthy ? 'ZoneUnhealthy' : instances >= capacity ? 'ZoneFull' : 'Ok';
      return { target: name, healthy: reason === 'Ok', reason, message: message ?? '' };
    });
  },
});
