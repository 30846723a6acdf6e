// Connections that are held, flooded or spoken to in the wrong language.
import { each, exchange, field, frame, http2Frame, openSession, PREFACE, random, require, sleep, tally } from './wire.mjs';

const SETTINGS = http2Frame(4, 0, 0);

// The coordinator drops a connection that breaks the protocol, or keeps it and goes on; either is shown.
async function throwAt(addresses, attacks, seconds = 12) {
  const sent = addresses.flatMap((address) => attacks.map((bytes) => ({ address, bytes })));
  const answers = await each(sent, 8, ({ address, bytes }) => exchange(address, bytes, seconds));
  return tally(answers.map(({ closed }) => (closed ? 'closed' : 'kept open')));
}

const halfOpen = {
  name: '1,000 streams that begin and send no message, over 5 connections',
  async run(world) {
    const sessions = Array.from({ length: 5 }, () => openSession(world.tcp));
    try {
      const paths = ['SubmitJob', 'GetJob', 'WatchJob', 'Heartbeat'].map((name) => world.methods.find((one) => one.name === name).path);
      let answered = 0;
      for (const session of sessions) {
        for (let at = 0; at < 200; ++at) {
          const stream = session.request({ ':method': 'POST', ':path': paths[at % 4], 'content-type': 'application/grpc', te: 'trailers' }, { endStream: false });
          stream.on('error', () => {});
          stream.on('response', () => { ++answered; });
          if (at % 2) stream.write(Buffer.from([0, 0, 0]));
        }
      }
      await Promise.all(sessions.map((session) => new Promise((done) => session.ping(done))));
      const seconds = await world.alive();
      return `${answered} answered; nsactl list took ${seconds.toFixed(2)} s meanwhile`;
    } finally {
      for (const session of sessions) session.destroy();
    }
  },
};

const unread = {
  name: '200 streams of records that are never read',
  async run(world) {
    const session = openSession(world.tcp);
    try {
      const { path } = world.methods.find(({ name }) => name === 'WatchRecords');
      const body = frame(Buffer.concat([field(1, 2, Buffer.from(world.jobId)), field(4, 0, Buffer.from([1]))]));
      for (let at = 0; at < 200; ++at) {
        const stream = session.request({ ':method': 'POST', ':path': path, 'content-type': 'application/grpc', te: 'trailers', authorization: `Bearer ${world.tokens.viewer}` }, { endStream: false });
        stream.on('error', () => {});
        stream.pause();
        stream.end(body);
      }
      await new Promise((done) => session.ping(done));
      return `nsactl list took ${(await world.alive()).toFixed(2)} s meanwhile`;
    } finally {
      session.destroy();
    }
  },
};

const cancelled = {
  name: '600 streams and calls that are cancelled at once',
  async run(world) {
    const requests = [['WatchJob', { job: world.jobId }], ['WatchRecords', { job: world.jobId, follow: true }], ['StreamLogs', { job: world.jobId, rank: -1, follow: true }],
      ['WatchEvents', { follow: true }]];
    for (let at = 0; at < 600; ++at) {
      const [name, request] = requests[at % 4];
      const call = world.startStream(name, request, { token: world.tokens.viewer });
      if (at % 2) setImmediate(() => call.cancel());
      else call.cancel();
    }
    await sleep(0);
    return 'CANCELLED 600';
  },
};

const rapidReset = {
  name: '4,000 streams, each reset right after its headers',
  async run(world) {
    const sessions = Array.from({ length: 4 }, () => openSession(world.tcp));
    let opened = 0;
    const { path } = world.methods.find(({ name }) => name === 'SubmitJob');
    for (let at = 0; at < 4000; ++at) {
      try {
        const stream = sessions[at % 4].request({ ':method': 'POST', ':path': path, 'content-type': 'application/grpc', te: 'trailers' }, { endStream: false });
        stream.on('error', () => {});
        stream.close(8);
        ++opened;
      } catch {
        break;  // the coordinator has closed the connection
      }
      if (at % 200 === 0) await sleep(0);
    }
    const ended = await Promise.all(sessions.map((session) => new Promise((done) => {
      session.close(() => done('closed'));
      setTimeout(() => done('kept open'), 5000).unref();
    })));
    for (const session of sessions) session.destroy();
    return `${opened} opened; connections: ${tally(ended)}`;
  },
};

const foreign = {
  name: 'HTTP/1.1, TLS, SSH and random bytes on the gRPC port and the socket',
  run(world) {
    const next = random(11);
    return throwAt([world.tcp, world.socket], [
      Buffer.from(`GET /metrics HTTP/1.1\r\nHost: ${world.tcp}\r\n\r\n`),
      Buffer.from(`POST /nsa.v1.CoordinatorService/ListJobs HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n`),
      Buffer.from('16030100c8010000c40303' + 'ab'.repeat(190), 'hex'),
      Buffer.from('SSH-2.0-OpenSSH_9.2\r\n'),
      Buffer.from(Array.from({ length: 65_536 }, () => next(256))),
      Buffer.concat([PREFACE, Buffer.from(Array.from({ length: 65_536 }, () => next(256)))]),
      PREFACE.subarray(0, 10),
      Buffer.alloc(0),
    ]);
  },
};

const brokenFrames = {
  name: 'HTTP/2 frames that break the protocol, twelve kinds',
  run(world) {
    const number = (value) => Buffer.from([value >>> 24, (value >>> 16) & 255, (value >>> 8) & 255, value & 255]);
    const frames = [
      http2Frame(0, 0, 0, Buffer.alloc(10)),  // DATA of no stream
      http2Frame(0, 0, 1, Buffer.alloc(10)),  // of a stream that was never opened
      http2Frame(1, 4, 2, Buffer.from([0x82])),  // HEADERS of an even stream
      http2Frame(1, 4, 1, Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])),  // no HPACK
      http2Frame(4, 0, 0, Buffer.alloc(5)),  // SETTINGS of a wrong size
      http2Frame(4, 0, 0, Buffer.concat([Buffer.from([0, 4]), number(0xffffffff)])),  // a window beyond 2^31
      http2Frame(6, 0, 0, Buffer.alloc(3)),  // PING of a wrong size
      http2Frame(8, 0, 0, number(0)),  // WINDOW_UPDATE by nothing
      Buffer.concat([http2Frame(8, 0, 0, number(0x7fffffff)), http2Frame(8, 0, 0, number(0x7fffffff))]),  // beyond its limit
      http2Frame(9, 0, 1, Buffer.from([0x82])),  // CONTINUATION of nothing
      http2Frame(0, 0, 1, Buffer.alloc(100_000)),  // larger than allowed
      http2Frame(5, 4, 1, Buffer.alloc(10)),  // PUSH_PROMISE of a client
    ];
    return throwAt([world.tcp], frames.map((bytes) => Buffer.concat([PREFACE, SETTINGS, bytes])), 3);
  },
};

const floods = {
  name: 'floods: 50,000 pings, 50,000 settings, 32 MB of headers without an end',
  run(world) {
    const header = Buffer.concat([Buffer.from([0x00, 0x01, 0x61, 0x7f, 0x80, 0xff, 0xff, 0x3f]), Buffer.alloc(16_000, 0x61)]);
    const flood = Buffer.concat([http2Frame(1, 0, 1, header), ...Array(2000).fill(http2Frame(9, 0, 1, Buffer.alloc(16_000, 0x61)))]);
    const empty = Buffer.concat([http2Frame(1, 0, 1, Buffer.from([0x82])), Buffer.concat(Array(50_000).fill(http2Frame(9, 0, 1)))]);
    const floodsOf = [Buffer.concat(Array(50_000).fill(http2Frame(6, 0, 0, Buffer.alloc(8)))), Buffer.concat(Array(50_000).fill(SETTINGS)), flood, empty];
    return throwAt([world.tcp], floodsOf.map((bytes) => Buffer.concat([PREFACE, SETTINGS, bytes])), 5);
  },
};

const manyConnections = {
  name: '300 connections that say nothing, held until the coordinator ends them',
  async run(world) {
    const began = Date.now();
    const held = Array.from({ length: 300 }, () => exchange(world.tcp, Buffer.alloc(0), 30));
    const seconds = await world.alive();
    const ended = await Promise.all(held);
    require(ended.every(({ closed }) => closed), `${ended.filter(({ closed }) => !closed).length} still open after 30 s (closed after 10 s)`);
    return `closed after ${((Date.now() - began) / 1000).toFixed(0)} s; nsactl list took ${seconds.toFixed(2)} s meanwhile`;
  },
};

export const connectionAttacks = [halfOpen, unread, cancelled, rapidReset, foreign, brokenFrames, floods, manyConnections];
