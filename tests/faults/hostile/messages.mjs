// Messages that are too large, unpack to too much, or are no messages.
import zlib from 'node:zlib';

import { each, field, frame, openSession, random, rawCall, require, tally, until, varint } from './wire.mjs';

const MB = 1 << 20;
// An error in the coordinator's own words; the others would mean that something broke.
const ORDERLY = ['OK', 'INVALID_ARGUMENT', 'NOT_FOUND', 'ALREADY_EXISTS', 'PERMISSION_DENIED', 'FAILED_PRECONDITION', 'UNAUTHENTICATED', 'RESOURCE_EXHAUSTED', 'UNIMPLEMENTED'];
// gRPC says this of bytes that are no message.
const NO_MESSAGE = [...ORDERLY, 'INTERNAL'];

const codesOf = (answers) => tally(answers.map(({ code }) => code));

function checkAll(answers, allowed, of = (at) => at) {
  for (const [at, { code, message }] of answers.entries()) {
    require(allowed.includes(code), `${of(at)}: ${code} ${message.slice(0, 200)}`);
    require(message.length < 8000, `${of(at)}: a refusal of ${message.length} characters`);
  }
  return codesOf(answers);
}

// Runs `work` with an HTTP/2 connection to the TCP port.
async function withSession(world, work) {
  const session = openSession(world.tcp);
  try {
    return await work(session);
  } finally {
    session.destroy();
  }
}

const bearer = (token) => (token ? { authorization: `Bearer ${token}` } : {});

// Sends each body to its method on one connection.
function sendAll(world, calls, { width = 16, token = world.tokens.submitter } = {}) {
  return withSession(world, (session) => each(calls, width, ({ path, body, streams, headers = {} }) => rawCall(session, path, body, { streams, headers: { ...bearer(token), ...headers } })));
}

const pathOf = (world, name) => world.methods.find((one) => one.name === name).path;

// One call for each field of the requests for which `fits` returns true; `content` makes the bytes of the message.
function perField(world, fits, content) {
  return world.methods.flatMap(({ name, path, type, streams }) => type.field.filter(fits).map((one) => ({ name: `${name}.${one.name}`, path, streams, body: frame(content(one.number)) })));
}

const hugeStrings = {
  name: 'a text of 1 MiB in every text of every request',
  async run(world) {
    const text = Buffer.alloc(MB, 'x');
    const calls = perField(world, ({ type }) => type === 'TYPE_STRING' || type === 'TYPE_BYTES', (number) => field(number, 2, text));
    return checkAll(await sendAll(world, calls, { width: 4, token: world.tokens.operator }), ORDERLY, (at) => calls[at].name);
  },
};

const invalidText = {
  name: 'invalid UTF-8 and control characters in every text',
  async run(world) {
    const calls = ['fffe', 'c0af', 'eda080', 'f8888080', '00', '1b5b33316d', '0a0d'].flatMap((bytes) =>
      perField(world, ({ type }) => type === 'TYPE_STRING', (number) => field(number, 2, Buffer.from(bytes, 'hex'))));
    return checkAll(await sendAll(world, calls), NO_MESSAGE, (at) => calls[at].name);
  },
};

const wrongTypes = {
  name: 'every field of every request with every wire type',
  async run(world) {
    const contents = [varint(1), Buffer.alloc(8, 1), field(1, 0, varint(1)), Buffer.alloc(0), Buffer.alloc(0), Buffer.alloc(4, 1), Buffer.alloc(0), Buffer.alloc(0)];
    const calls = contents.flatMap((content, wireType) => perField(world, () => true, (number) => field(number, wireType, content)));
    return checkAll(await sendAll(world, calls), NO_MESSAGE, (at) => calls[at].name);
  },
};

const randomBytes = {
  name: '600 messages of random bytes',
  async run(world) {
    const next = random(7);
    const calls = Array.from({ length: 600 }, (_, at) => ({
      path: world.methods[at % world.methods.length].path,
      streams: world.methods[at % world.methods.length].streams,
      body: frame(Buffer.from(Array.from({ length: next(2000) }, () => next(256)))),
    }));
    return checkAll(await sendAll(world, calls), NO_MESSAGE);
  },
};

const unknownFields = {
  name: '4 MB of unknown fields; groups nested 100,000 deep',
  async run(world) {
    const many = Buffer.alloc(4_000_000, field(1000, 0, varint(1)));
    const deep = Buffer.alloc(100_000, field(1000, 3, Buffer.alloc(0)));
    const calls = [many, deep].flatMap((body) => ['GetJob', 'SubmitJob', 'Heartbeat'].map((name) => ({ name, path: pathOf(world, name), body: frame(body) })));
    return checkAll(await sendAll(world, calls, { width: 2 }), NO_MESSAGE, (at) => calls[at].name);
  },
};

// Four megabytes that unpack to as many elements as fit.
const hugeRepeated = {
  name: '2,000,000 elements in one request, with a token',
  async run(world) {
    const empty = (number) => frame(Buffer.alloc(4_000_000, field(number, 2, Buffer.alloc(0))));
    const calls = [
      { name: 'ListJobs.states', body: frame(field(3, 2, Buffer.alloc(4_000_000, 1))) },
      { name: 'ListJobs.labels', body: empty(4) },
      { name: 'SubmitJob.labels', body: frame(field(2, 2, Buffer.alloc(4_000_000, field(world.labels, 2, Buffer.alloc(0))))) },
      { name: 'Heartbeat.workers', body: empty(3) },
      { name: 'ReportRecords.records', body: empty(4) },
    ].map((call) => ({ ...call, path: pathOf(world, call.name.split('.')[0]) }));
    return checkAll(await sendAll(world, calls, { width: 1 }), ORDERLY, (at) => calls[at].name);
  },
};

const unpackedUnasked = {
  name: 'eight times 2,000,000 elements at once, without a token',
  async run(world) {
    const body = frame(Buffer.alloc(4_000_000, field(3, 2, Buffer.alloc(0))));
    const calls = Array(8).fill({ path: pathOf(world, 'Heartbeat'), body });
    return checkAll(await sendAll(world, calls, { width: 8, token: '' }), ['UNAUTHENTICATED', 'INVALID_ARGUMENT', 'RESOURCE_EXHAUSTED']);
  },
};

const unknownToAll = {
  name: '4 MB of unknown fields to every method at once, without a token',
  async run(world) {
    const body = frame(Buffer.alloc(4_000_000, field(1000, 0, varint(1))));
    const calls = world.methods.map(({ name, path, streams }) => ({ name, path, streams, body }));
    const answers = await sendAll(world, calls, { width: calls.length, token: '' });
    require(world.peak() < 512 * MB, `the coordinator took ${Math.round(world.peak() / MB)} MiB`);
    return checkAll(answers, ['UNAUTHENTICATED', 'RESOURCE_EXHAUSTED'], (at) => calls[at].name);
  },
};

const tooLarge = {
  name: 'messages of 4 MiB + 1 B and 64 MiB, and one said to have 4 GiB',
  async run(world) {
    const path = pathOf(world, 'SubmitJob');
    const calls = [{ path, body: frame(Buffer.alloc(4 * MB + 1)) }, { path, body: frame(Buffer.alloc(64 * MB)) }, { path, body: frame(Buffer.alloc(100), { claimed: 0xffffffff }) }];
    return checkAll(await sendAll(world, calls, { width: 1 }), ['RESOURCE_EXHAUSTED', 'UNIMPLEMENTED', 'CLOSED']);
  },
};

const bomb = {
  name: 'messages of 256 kB that inflate to 256 MB, gzip and deflate, without a token',
  async run(world) {
    const zeros = Buffer.alloc(256 * MB);
    const packed = { gzip: zlib.gzipSync(zeros), deflate: zlib.deflateSync(zeros) };
    const calls = Object.entries(packed).flatMap(([encoding, body]) => ['GetJob', 'SubmitJob', 'Heartbeat', 'ReportLog'].map((name) =>
      ({ name: `${name} ${encoding}`, path: pathOf(world, name), body: frame(body, { compressed: true }), headers: { 'grpc-encoding': encoding } })));
    return checkAll(await sendAll(world, calls, { width: 4, token: '' }), ['UNIMPLEMENTED', 'RESOURCE_EXHAUSTED'], (at) => calls[at].name);
  },
};

const badFrames = {
  name: 'frames that lie: cut off, longer than said, flag 255, none, two',
  async run(world) {
    const path = pathOf(world, 'GetJob');
    const good = field(1, 2, Buffer.from('x'));
    const calls = [frame(good, { claimed: 1000 }), frame(good, { claimed: 1 }), Buffer.concat([Buffer.from([255]), frame(good).subarray(1)]), Buffer.alloc(0), Buffer.from([0, 0]),
      Buffer.concat([frame(good), frame(good)]), frame(good, { compressed: true })].map((body) => ({ path, body }));
    return checkAll(await sendAll(world, calls), [...NO_MESSAGE, 'UNKNOWN', 'CANCELLED', 'CLOSED']);
  },
};

const badHeaders = {
  name: 'calls without trailers, with another type, method, path and encoding',
  async run(world) {
    const path = pathOf(world, 'ListJobs');
    const body = frame(Buffer.alloc(0));
    const variants = [{ te: undefined }, { 'content-type': 'text/html' }, { 'content-type': undefined }, { ':method': 'GET' }, { ':path': '/' }, { ':path': '/nsa.v1.CoordinatorService/../../etc/passwd' },
      { ':path': `/${'x'.repeat(4000)}` }, { 'grpc-encoding': 'brotli' }, { 'grpc-timeout': '99999999999H' }, { 'grpc-timeout': '-1S' }, { 'grpc-timeout': '0n' }, { 'x-many': 'y'.repeat(7000) }];
    // Without a token: what must not happen is an answer with content.
    const answers = await sendAll(world, variants.map((headers) => ({ path, body, headers })), { token: '' });
    for (const { code, body: content } of answers) require(code !== 'OK' && content.length === 0, `answered: ${code}`);
    return codesOf(answers);
  },
};

// The same request, many times at once: one effect.
const replays = {
  name: 'one request id 100 times at once, then with another job',
  async run(world) {
    const { spec } = await world.job();
    // Two ranks: it waits in the queue and takes no time from the job that trains.
    const mine = { ...spec, name: 'replayed', resources: { ...spec.resources, gpus: 2 }, train: { ...spec.train, out_dir: `${spec.train.out_dir}-replayed` } };
    const options = { token: world.tokens.submitter };
    const submit = { request_id: 'replayed', spec: mine };
    const answers = await each(Array(100).fill(submit), 20, (request) => world.call('SubmitJob', request, options));
    const ids = new Set(answers.map(({ response }) => response?.job?.id));
    require(ids.size === 1 && !ids.has(undefined), `${ids.size} jobs: ${codesOf(answers)} ${answers[0].message}`);
    const [id] = ids;
    const other = await world.call('SubmitJob', { ...submit, spec: { ...mine, name: 'other' } }, options);
    require(other.code === 'ALREADY_EXISTS', `another job with that id: ${other.code}`);
    const stopped = await each(Array(20).fill({ job: id, stop: { mode: 'STOP_MODE_NOW' } }), 20, (request) => world.call('StopJob', request, options));
    require(stopped.some(({ code }) => code === 'OK'), `stop: ${codesOf(stopped)}`);
    await until(async () => ['STATE_STOPPED', 'STATE_FAILED'].includes((await world.call('GetJob', { job: id }, options)).response?.job.state), 30, 'the stop');
    const deleted = await each(Array(20).fill({ request_id: 'replayed-delete', job: id }), 20, (request) => world.call('DeleteJob', request, options));
    require(deleted.every(({ code, response }) => code === 'OK' && response.job_id === id), `delete: ${codesOf(deleted)}`);
    const again = await world.call('SubmitJob', submit, options);
    require(again.code === 'NOT_FOUND', `submitted again after its deletion: ${again.code}`);
    return codesOf([...answers, other, ...stopped, ...deleted, again]);
  },
};

export const messageAttacks = [hugeStrings, invalidText, wrongTypes, randomBytes, unknownFields, hugeRepeated, unpackedUnasked, unknownToAll, tooLarge, bomb, badFrames, badHeaders, replays];
