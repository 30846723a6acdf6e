#!/usr/bin/env node
// A client that means harm and shares no code with the coordinator: Node, gRPC in JavaScript, and bytes by hand.
//
//   tests/faults/hostile_client.mjs WORLD.json       tests/faults/hostile_client_test.py starts a coordinator with a job that trains, writes the
//                                                    file and runs this program
//
// After every attack the job must have done more steps, `nsactl list` must answer within two seconds (longer while the machine is so busy that
// `nsactl --help`, which asks nobody, takes longer than usual) and the coordinator's memory must be less than 64 MiB above where it began. Prints a
// table and exits with 1 if an attack had an effect or a promise was broken.
import { execFile } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import { promisify } from 'node:util';

import { connectionAttacks } from './hostile/connections.mjs';
import { identityAttacks } from './hostile/identity.mjs';
import { messageAttacks } from './hostile/messages.mjs';
import { pageAttacks } from './hostile/page.mjs';
import { CODES, exchange, require as demand, until, within } from './hostile/wire.mjs';

const LIST_SECONDS = 2;
const HELP_SECONDS = 0.2; // what `nsactl --help` may take on a machine that is not busy
const MEMORY_BYTES = 64 << 20;
const world = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const load = createRequire(`${world.modules}/`);
const grpc = load('@grpc/grpc-js');
const root = grpc.loadPackageDefinition(load('@grpc/proto-loader').loadSync(['nsa/v1/coordinator.proto', 'nsa/v1/fleet.proto'],
  { includeDirs: [world.protos], keepCase: true, longs: Number, enums: String, bytes: Buffer })).nsa.v1;
grpc.setLogger({ error() {}, info() {}, debug() {} });

const clients = new Map();
function clientOf(service, address) {
  const key = `${service} ${address}`;
  if (!clients.has(key)) {
    clients.set(key, new root[service](address, grpc.credentials.createInsecure(),
      { 'grpc.max_send_message_length': -1, 'grpc.max_receive_message_length': -1, 'grpc.enable_retries': 0 }));
  }
  return clients.get(key);
}

// Every method: {service, name, path, type (its request), streams}.
world.methods = ['CoordinatorService', 'FleetService'].flatMap((service) => Object.entries(root[service].service).map(([name, one]) =>
  ({ service, name, path: one.path, type: one.requestType.type, streams: one.responseStream })));

// The number of the job's labels in its spec.
world.labels = root.JobSpec.type.field.find(({ name }) => name === 'labels').number;

// Calls a method of either service. Resolves to {code, message, response}; for a stream `response` has the first `most` messages. `token` is sent as
// a bearer token, `headers` as they are.
world.call = (name, request, { address = world.tcp, token = '', headers = [], most = 100, seconds = 15 } = {}) => {
  const method = world.methods.find((one) => one.name === name);
  const metadata = new grpc.Metadata();
  if (token) metadata.set('authorization', `Bearer ${token}`);
  for (const [key, value] of headers) metadata.add(key, value);
  const client = clientOf(method.service, address);
  const options = { deadline: Date.now() + seconds * 1000 };
  const failed = (error) => ({ code: CODES[error.code] ?? 'UNKNOWN', message: error.details ?? String(error) });
  return new Promise((done) => {
    if (!method.streams) {
      client[name](request, metadata, options, (error, response) => done(error ? failed(error) : { code: 'OK', message: '', response }));
      return;
    }
    const seen = [];
    const call = client[name](request, metadata, options);
    const full = () => done({ code: 'OK', message: '', response: seen });
    call.on('data', (message) => {
      seen.push(message);
      if (seen.length >= most) {
        full();
        call.cancel();
      }
    });
    call.on('error', (error) => done(failed(error)));
    call.on('end', full);
  });
};

world.startStream = (name, request, { address = world.tcp, token = '' } = {}) => {
  const metadata = new grpc.Metadata();
  metadata.set('authorization', `Bearer ${token}`);
  const call = clientOf('CoordinatorService', address)[name](request, metadata);
  call.on('error', () => {});
  return call;
};

// The job as its owner sees it.
world.job = async () => {
  const { code, message, response } = await world.call('GetJob', { job: world.jobId }, { address: world.socket });
  demand(code === 'OK', `GetJob of the job that trains: ${code} ${message}`);
  return response.job;
};

function memory(word) {
  const line = fs.readFileSync(`/proc/${world.pid}/status`, 'utf8').match(new RegExp(`^${word}:\\s+(\\d+) kB`, 'm'));
  return Number(line[1]) * 1024;
}

const MiB = (bytes) => `${Math.round(bytes / (1 << 20))} MiB`;
let started = 0;
let step = 0;

async function runNsactl(seconds, ...words) {
  const began = Date.now();
  await within(promisify(execFile)(world.nsactl, words, { env: { ...process.env, ...world.environment } }), seconds, `nsactl ${words.join(' ')}`);
  return (Date.now() - began) / 1000;
}

// How long `nsactl list` took; a failure when it or /healthz took more than two seconds, times how busy the machine is.
async function askBoth() {
  const limit = LIST_SECONDS * Math.max(1, await runNsactl(60, '--help') / HELP_SECONDS);
  const seconds = await runNsactl(limit, 'list');
  const health = await exchange(world.http, `GET /healthz HTTP/1.1\r\nHost: ${world.http}\r\n\r\n`, limit);
  demand(health.bytes.toString().startsWith('HTTP/1.1 200'), `/healthz: ${health.bytes.toString().slice(0, 60) || 'no answer'} within ${limit} s`);
  return seconds;
}

// What must hold after every attack, and during those that hold something open. Returns how long `nsactl list` took. The machine may be busy with
// other work for a moment, so that both are asked for fifteen seconds until both are in time.
world.alive = async () => {
  let problem;
  const seconds = await until(() => askBoth().catch((error) => {
    problem = error.message;
  }), 15, 'nsactl list and /healthz in two seconds each').catch((error) => {
    throw new Error(`${error.message}: ${problem}`);
  });
  const before = step;
  await until(async () => {
    const job = await world.job();
    demand(job.state === 'STATE_RUNNING' && !job.restarts, `the job is ${job.state}, restarts: ${job.restarts ?? 0}, ${job.message ?? ''}`);
    step = job.progress.step;
    return step > before;
  }, 20, 'another step of the job');
  return seconds;
};

async function check() {
  const seconds = await world.alive();
  let grown = 0;
  await until(() => (grown = memory('VmRSS') - started) < MEMORY_BYTES, 10, `memory below ${MiB(started + MEMORY_BYTES)}`).catch((error) => {
    throw new Error(`${error.message}: ${MiB(started + grown)}`);
  });
  return { seconds, grown };
}

// The most memory since the attack began.
world.peak = () => memory('VmHWM');

// The most memory since the last call. Linux keeps it for every process and lets its owner reset it.
function peakSinceReset() {
  const most = memory('VmHWM');
  fs.writeFileSync(`/proc/${world.pid}/clear_refs`, '5');
  return most;
}

async function main() {
  const attacks = [...identityAttacks, ...messageAttacks, ...connectionAttacks, ...pageAttacks].filter(({ name }) => name.includes(world.only ?? ''));
  await world.alive();
  started = memory('VmRSS');
  const rows = [];
  for (const { name, run } of attacks) {
    const row = { name, answer: '', result: 'no effect' };
    rows.push(row);
    peakSinceReset();
    const before = memory('VmRSS');
    try {
      row.answer = await within(run(world), 90, name);
    } catch (error) {
      row.result = `EFFECT: ${error.message}`;
    }
    try {
      const peak = peakSinceReset() - before;
      const { seconds, grown } = await check();
      row.figures = `+${MiB(peak)} at most, ${grown < 0 ? '' : '+'}${MiB(grown)} now, list ${seconds.toFixed(2)} s`;
    } catch (error) {
      row.result = row.result.startsWith('EFFECT') ? `${row.result}; then ${error.message}` : `EFFECT: ${error.message}`;
    }
    console.log(`| ${row.name} | ${row.answer} | ${row.figures ?? '-'} | ${row.result} |`);
    if (!fs.existsSync(`/proc/${world.pid}`)) break;
  }
  const bad = rows.filter(({ result }) => result !== 'no effect');
  console.log(`${rows.length} attacks, ${bad.length} with an effect; the job is at step ${step}`);
  for (const { name, result } of bad) console.log(`FAILED: ${name}: ${result}`);
  process.exit(bad.length > 0 ? 1 : 0);
}

console.log('| attack | the coordinator answered | memory and time | result |\n| --- | --- | --- | --- |');
await main();
