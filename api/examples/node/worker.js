'use strict';
// A worker for Leasehold in Node: node worker.js 127.0.0.1:50051[,127.0.0.1:50052...]
// It leases as many attempts as it has slots free, renews them, and reports. Its messages come
// from leasehold.binpb, a descriptor set of the wire contract that `make generate` writes.
const { readFileSync } = require('node:fs');
const { randomUUID } = require('node:crypto');
const { setTimeout: sleep } = require('node:timers/promises');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const handlers = {
  // Each gets the parsed input and what it may need of the lease; signal says that it must stop.
  'text.upper/v1': async (input) => input.text.toUpperCase(),
  'text.join/v1': async (_input, { parents }) => Object.keys(parents).sort().map((name) => parents[name]).join(' '),
  'text.wait/v1': async (input, { signal }) => sleep(input.ms, 'waited', { signal }),
};
const slots = 4;
const set = loader.loadFileDescriptorSetFromBuffer(readFileSync(`${__dirname}/leasehold.binpb`), { keepCase: true, longs: String, enums: String, oneofs: true });
const { WorkerService } = grpc.loadPackageDefinition(set).leasehold.v1;
const client = new WorkerService(`ipv4:${process.argv[2] || '127.0.0.1:50051'}`, grpc.credentials.createInsecure(), {
  'grpc.service_config': JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }), // goes round replicas that are gone
});
const call = (method, request, ms = 5000) => new Promise((resolve, reject) => {
  client[method](request, { deadline: Date.now() + ms }, (err, answer) => (err ? reject(err) : resolve(answer)));
});
const { FAILED_PRECONDITION, NOT_FOUND, INVALID_ARGUMENT } = grpc.status;
const final = (err) => [FAILED_PRECONDITION, NOT_FOUND, INVALID_ARGUMENT].includes(err.code); // a repeat would not help
const backoff = (tries) => sleep(Math.min(100 * 2 ** tries, 10000) * (0.5 + Math.random() / 2));
const ms = (d) => (d ? Number(d.seconds || 0) * 1000 + (d.nanos || 0) / 1e6 : 0); // zeros do not travel
const parse = (payload) => (payload && payload.body === 'json' ? JSON.parse(payload.json) : null);

let session; // { worker_id, session_id }, as the server gave it
let [stopping, running] = [false, 0];

// Keeps a lease until the attempt is over. Its end is counted from when a renewal was sent.
async function keep(lease, ends, attempt) {
  for (let wait = ms(lease.renew_after); ; ) {
    await sleep(wait, undefined, { signal: attempt.over.signal }).catch(() => {});
    if (attempt.over.signal.aborted) return;
    const sent = performance.now();
    try {
      const answer = await call('RenewLease', { attempt_id: lease.attempt_id, lease_version: lease.lease_version, session_id: session.session_id });
      ends = sent + ms(answer.lease_duration);
      wait = ms(answer.renew_after);
      if (answer.directive === 'DIRECTIVE_CANCEL') attempt.stop('canceled');
    } catch (err) {
      if (final(err) || performance.now() + 1500 > ends) return attempt.stop('lost');
      wait = 200;
    }
  }
}

async function report(lease, outcome, ends) {
  for (let tries = 0; performance.now() < ends + 60000; tries++) {
    try {
      return await call('ReportAttempt', { attempt_id: lease.attempt_id, lease_version: lease.lease_version, ...outcome });
    } catch (err) {
      if (final(err)) return console.error('report refused:', err.details); // somebody else has it now
      await backoff(tries);
    }
  }
}

async function run(lease, sent, held) {
  const ends = sent + ms(held) + ms(lease.lease_duration);
  const handler = new AbortController();
  const attempt = { over: new AbortController(), why: '', stop(why) { this.why ||= why; handler.abort(); } };
  keep(lease, ends, attempt);
  let outcome;
  try {
    const parents = Object.fromEntries((lease.parent_outputs || []).map(({ key, value }) => [key, parse(value)])); // a map on the wire
    const output = await handlers[lease.capability](parse(lease.input), { signal: handler.signal, parents, lease });
    outcome = { succeeded: { output: { json: JSON.stringify(output ?? null) } } };
  } catch (err) {
    outcome = attempt.why === 'canceled' ? { canceled: {} } : { failed: { failure: { type: err.name, message: err.message } } };
  }
  attempt.over.abort();
  if (attempt.why !== 'lost') await report(lease, outcome, ends);
}

async function main() {
  process.once('SIGTERM', () => { stopping = true; if (session) call('DrainWorker', session).catch(() => {}); });
  for (let tries = 0, request = randomUUID(); !stopping || running > 0; ) {
    if (stopping || running >= slots) { await sleep(20); continue; }
    try {
      session ??= await call('RegisterWorker', { capabilities: Object.keys(handlers), slots, request_id: randomUUID() });
      const sent = performance.now();
      const answer = await call('LeaseAttempt', { worker_id: session.worker_id, session_id: session.session_id, request_id: request, max_leases: slots - running, wait_timeout: { seconds: 20 } }, 25000);
      for (const lease of answer.leases || []) { running++; run(lease, sent, answer.held_duration).finally(() => running--); }
      tries = 0; request = randomUUID(); // only an answered request gets a new id: a repeat is given the same leases
    } catch (err) {
      if (err.code === NOT_FOUND) session = undefined; else if (final(err)) throw err;
      await backoff(tries++);
    }
  }
  if (session) await call('DeregisterWorker', session).catch(() => {});
}

main().then(() => process.exit(0), (err) => { console.error(err.message); process.exit(1); });
