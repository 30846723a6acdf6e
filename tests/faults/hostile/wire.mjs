// Bytes by hand: protobuf fields, gRPC frames, HTTP/2 frames, sockets. Every wait has a limit.
import http2 from 'node:http2';
import net from 'node:net';

export const CODES = ['OK', 'CANCELLED', 'UNKNOWN', 'INVALID_ARGUMENT', 'DEADLINE_EXCEEDED', 'NOT_FOUND', 'ALREADY_EXISTS', 'PERMISSION_DENIED',
  'RESOURCE_EXHAUSTED', 'FAILED_PRECONDITION', 'ABORTED', 'OUT_OF_RANGE', 'UNIMPLEMENTED', 'INTERNAL', 'UNAVAILABLE', 'DATA_LOSS', 'UNAUTHENTICATED'];

export function require(condition, words) {
  if (!condition) throw new Error(words);
}

// "NOT_FOUND 12, OK 1"
export function tally(words) {
  const counts = new Map();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts].map(([word, count]) => `${word} ${count}`).join(', ');
}

// Runs `work` on every item, `width` at a time.
export async function each(items, width, work) {
  const results = [];
  let next = 0;
  const run = async () => {
    while (next < items.length) {
      const at = next++;
      results[at] = await work(items[at], at);
    }
  };
  await Promise.all(Array.from({ length: width }, run));
  return results;
}

export const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

export async function until(condition, seconds, words) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    require(Date.now() < end, `${words}: not within ${seconds} s`);
    await sleep(50);
  }
}

export function within(promise, seconds, words) {
  let timer;
  const late = new Promise((_, fail) => { timer = setTimeout(() => fail(new Error(`${words}: no answer within ${seconds} s`)), seconds * 1000); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export function varint(number) {
  const bytes = [];
  let rest = BigInt(number);
  do {
    const low = Number(rest & 0x7fn);
    rest >>= 7n;
    bytes.push(rest > 0n ? low | 0x80 : low);
  } while (rest > 0n);
  return Buffer.from(bytes);
}

export function field(number, wireType, content) {
  const tag = varint((number << 3) | wireType);
  return wireType === 2 ? Buffer.concat([tag, varint(content.length), content]) : Buffer.concat([tag, content]);
}

// One message as gRPC sends it; `claimed` is the length that the frame names.
export function frame(message, { compressed = false, claimed = message.length } = {}) {
  const head = Buffer.alloc(5);
  head[0] = compressed ? 1 : 0;
  head.writeUInt32BE(claimed, 1);
  return Buffer.concat([head, message]);
}

// "127.0.0.1:5" or "unix:/path"
export function connectTo(address) {
  if (address.startsWith('unix:')) return net.connect({ path: address.slice(5) });
  const colon = address.lastIndexOf(':');
  return net.connect({ host: address.slice(0, colon), port: Number(address.slice(colon + 1)) });
}

export function openSession(address) {
  const session = http2.connect('http://coordinator', { createConnection: () => connectTo(address), maxSessionMemory: 1000 });
  session.on('error', () => {});
  return session;
}

// One call whose bytes and headers the caller chooses; a header that is undefined is left out. Resolves to {code, message, http, body}; a connection or stream that the coordinator closes is an answer
// too, and its code is CLOSED. A stream is left when its first part comes, and
// after a second: one that follows may have nothing to send.
export function rawCall(session, path, body, { headers = {}, streams = false, seconds = 15 } = {}) {
  const answer = new Promise((done) => {
    const seen = { code: 'CLOSED', message: '', http: 0, body: [] };
    let stream;
    try {
      const all = { ':method': 'POST', ':path': path, 'content-type': 'application/grpc', te: 'trailers', ...headers };
      stream = session.request(Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)), { endStream: false });
    } catch {
      return done(seen);
    }
    const take = (given) => {
      if (given[':status'] !== undefined) seen.http = given[':status'];
      if (given['grpc-status'] !== undefined) seen.code = CODES[Number(given['grpc-status'])] ?? `code ${given['grpc-status']}`;
      if (given['grpc-message'] !== undefined) seen.message = decodeURIComponent(given['grpc-message']);
    };
    const leave = () => {
      if (seen.code === 'CLOSED') seen.code = 'OK';
      stream.close();
    };
    if (streams) setTimeout(leave, 1000).unref();
    stream.on('response', (given) => {
      take(given);
      if (streams) leave();
    });
    stream.on('trailers', take);
    stream.on('data', (part) => seen.body.push(part));
    stream.on('error', () => {});
    stream.on('close', () => done({ ...seen, body: Buffer.concat(seen.body) }));
    stream.end(body);
  });
  return within(answer, seconds, path);
}

// Sends bytes and collects what comes back until the other side closes or `seconds` pass; resolves to {bytes, closed}.
export function exchange(address, bytes, seconds, { endWriting = false } = {}) {
  return new Promise((done) => {
    const socket = connectTo(address);
    const parts = [];
    const finish = (closed) => {
      clearTimeout(timer);
      socket.destroy();
      done({ bytes: Buffer.concat(parts), closed });
    };
    const timer = setTimeout(() => finish(false), seconds * 1000);
    socket.on('error', () => {});
    socket.on('close', () => finish(true));
    socket.on('data', (part) => { if (parts.length < 1000) parts.push(part); });
    socket.on('connect', () => (endWriting ? socket.end(bytes) : socket.write(bytes)));
  });
}

export const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');

export function http2Frame(type, flags, stream, payload = Buffer.alloc(0)) {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = type;
  head[4] = flags;
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

// Numbers that look random and are the same in every run.
export function random(seed) {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 4294967296) * below);
  };
}
