// What every provider in JavaScript needs: errors with a kind, requests, and a wrapper that turns a stray exception into
// `internal` with its text. An Error that leaves an export would be a trap without a word.

import { send } from 'crawl:provider/http@0.1.0';
import { write } from 'crawl:provider/log@0.1.0';

/** An answer that is an error of the contract: thrown as it is. */
export class Refused {
  constructor(kind, message, { reason, target, val } = {}) {
    Object.assign(this, { kind: val === undefined ? { tag: kind } : { tag: kind, val }, message, reason, target });
  }
}

const FAULTS = {
  'unknown-connection': ['config-missing', 'ConnectionNotGranted'],
  'not-configured': ['config-missing', 'ConnectionNotConfigured'],
  credential: ['unauthorized', 'CredentialMissing'],
  denied: ['config-missing', 'Denied'],
  dns: ['transient', 'DnsFailed'],
  unreachable: ['transient', 'Unreachable'],
  tls: ['unauthorized', 'TlsFailed'],
  'auth-refused': ['unauthorized', 'AuthRefused'],
  'timed-out': ['transient', 'TimedOut'],
  lost: ['transient', 'ConnectionLost'],
  'too-large': ['internal', 'TooLarge'],
  busy: ['transient', 'Busy'],
  protocol: ['transient', 'ProtocolError'],
};

/** Sends a request over a connection; answers `{status, json}`. `change`: whether it changes the backend. */
export function request(connection, method, path, { query = [], body } = {}) {
  const change = method !== 'GET';
  const headers = body === undefined ? [] : [['content-type', new TextEncoder().encode('application/json')]];
  const bytes = body === undefined ? undefined : new TextEncoder().encode(JSON.stringify(body));
  let answer;
  try {
    answer = send(connection, { method, path, query, headers, body: bytes, timeoutMs: 10_000 });
  } catch (thrown) {
    const fault = thrown.payload ?? thrown;
    const [kind, reason] = FAULTS[fault.kind] ?? ['transient', 'IoFailed'];
    throw new Refused(change && fault.sent ? 'unknown-outcome' : kind, fault.message, { reason });
  }
  const text = new TextDecoder().decode(answer.body);
  let json;
  try {
    json = text === '' ? undefined : JSON.parse(text);
  } catch {
    if (answer.status < 300) {
      throw new Refused(change ? 'unknown-outcome' : 'internal', `${method} ${path}: the answer is no JSON`, {
        reason: 'UnexpectedAnswer',
      });
    }
  }
  return { status: answer.status, json, headers: answer.headers, change };
}

/** The error of an answer that the provider has no rule for. */
export function unexpected({ status, json, headers, change }) {
  const said = json?.message ?? 'no reason given';
  if (status === 401 || status === 403) return new Refused('unauthorized', said, { reason: 'AuthRefused' });
  if (status === 429) {
    const after = headers.find(([name]) => name.toLowerCase() === 'retry-after');
    const seconds = after === undefined ? NaN : Number(new TextDecoder().decode(after[1]));
    const val = Number.isInteger(seconds) ? seconds : undefined;
    return Object.assign(new Refused('rate-limited', said, { reason: 'RateLimited' }), { kind: { tag: 'rate-limited', val } });
  }
  if (change && (status === 502 || status === 504)) return new Refused('unknown-outcome', said, { reason: 'ServerError' });
  if (status >= 500) return new Refused('transient', said, { reason: 'ServerError' });
  return new Refused('internal', `unexpected status ${status}: ${said}`, { reason: 'UnexpectedAnswer' });
}

/** Exports of the contract out of plain functions. */
export function provider(functions) {
  const wrapped = {};
  for (const [name, call] of Object.entries(functions)) {
    wrapped[name] = (...args) => {
      try {
        return call(...args);
      } catch (thrown) {
        if (!(thrown instanceof Error)) throw thrown;
        const text = `${name}: ${thrown.name}: ${thrown.message}`;
        write('error', text, [['panic', 'true']]);
        if (name === 'describe') throw thrown;
        if (name === 'validate') throw { errors: [{ pointer: '', message: text }] };
        throw new Refused('internal', text);
      }
    };
  }
  return wrapped;
}
