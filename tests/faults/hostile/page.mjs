// The HTTP port: the live page, its API and /metrics.
import { connectTo, each, exchange, require, tally } from './wire.mjs';

const SECRETS = /root:|PRIVATE KEY|^[0-9a-f]{64}$/m;

// Sends one request as text. Resolves to {status (0: closed without an answer), text, closed}.
async function ask(world, text, seconds = 12) {
  const { bytes, closed } = await exchange(world.http, text, seconds);
  const answer = bytes.toString('latin1');
  return { status: Number(answer.match(/^HTTP\/1\.1 (\d+)/)?.[1] ?? 0), text: answer, closed };
}

const statusesOf = (answers) => tally(answers.map(({ status }) => status || 'closed'));

// Every request is refused or closed, and nothing of what is secret is in any answer.
async function refusedAll(world, requests, fits = (status) => status === 0 || status >= 400) {
  const answers = await each(requests, 8, (text) => ask(world, text));
  for (const [at, { status, text, closed }] of answers.entries()) {
    const shown = JSON.stringify(requests[at].toString('latin1').slice(0, 120));
    require(closed, `no answer to ${shown} within 12 s`);
    require(fits(status), `${status} for ${shown}`);
    require(!SECRETS.test(text), `the answer to ${shown} shows a secret`);
  }
  return statusesOf(answers);
}

const get = (world, path, headers = '') => Buffer.from(`GET ${path} HTTP/1.1\r\nHost: ${world.http}\r\n${headers}\r\n`, 'latin1');
const post = (world, path, headers, body) => Buffer.from(`POST ${path} HTTP/1.1\r\nHost: ${world.http}\r\n${headers}Content-Length: ${body.length}\r\n\r\n${body}`, 'latin1');

const halfSent = {
  name: '60 HTTP requests that are half sent',
  async run(world) {
    const parts = ['', 'G', 'GET /metrics HTTP/1.1\r\nHost: x', 'GET /metrics HTTP/1.1\r\n', `POST /api/v1/jobs/x/stop HTTP/1.1\r\nHost: ${world.http}\r\nContent-Length: 100\r\n\r\n{`];
    const held = Array.from({ length: 60 }, (_, at) => ask(world, parts[at % parts.length], 15));
    const seconds = await world.alive();
    const ended = await Promise.all(held);
    require(ended.every(({ closed }) => closed), 'a half request was still open after 15 s');
    return `${statusesOf(ended)}; nsactl list took ${seconds.toFixed(2)} s meanwhile`;
  },
};

const wrongHost = {
  name: 'a Host that is not ours',
  run: (world) => refusedAll(world, ['evil.example', 'evil.example:9464', '127.0.0.1.evil.example', 'localhost.evil.example', 'evil.example#localhost', 'x'.repeat(4000), ' ']
    .flatMap((host) => ['/metrics', '/api/v1/fleet'].map((path) => Buffer.from(`GET ${path} HTTP/1.1\r\nHost: ${host}\r\n\r\n`)))),
};

const traversal = {
  name: 'paths that lead elsewhere',
  run: (world) => refusedAll(world, ['/../../../../etc/passwd', '/%2e%2e/%2e%2e/etc/passwd', '/..%2f..%2f..%2fetc%2fpasswd', '/..\\..\\etc\\passwd', '//etc/passwd', '/./.././token', '/app.js%00.html',
    `/api/v1/jobs/..%2f..%2ftoken/log`, '/api/v1/jobs/../../../token', `/api/v1/jobs/${world.jobId}/stacks/../../../token`, `/api/v1/jobs/${world.jobId}/stacks/-1`, `/api/v1/jobs/${world.jobId}/log?rank=../../x`,
    `/api/v1/jobs/${world.jobId}/stacks/99999999999999999999`, `/api/v1/${'a/'.repeat(3000)}`, '/api/v1/', '/api/v1'].map((path) => get(world, path)),
  // A rank that is no number is rank 0.
  (status) => status === 0 || status >= 400 || status === 200),
};

const withoutRight = {
  name: 'changes without a token, with a wrong one, from another page',
  run(world) {
    const path = `/api/v1/jobs/${world.jobId}`;
    const good = `Authorization: Bearer ${world.tokens.operator}\r\n`;
    return refusedAll(world, [
      ...['stop', 'resume', 'stacks', 'pin'].flatMap((verb) => ['', 'Authorization: Bearer nonsense-nonsense\r\n', `Authorization: Bearer ${world.tokens.viewer}\r\n`, `Authorization: Bearer ${world.tokens.submitter}\r\n`]
        .map((headers) => post(world, `${path}/${verb}`, headers, '{"mode":"now","step":1,"pinned":true}'))),
      post(world, `${path}/stop`, `${good}Origin: http://evil.example\r\n`, '{"mode":"now"}'),
      post(world, `${path}/stop`, `${good}Sec-Fetch-Site: cross-site\r\n`, '{"mode":"now"}'),
      post(world, `${path}/stop`, good, '{"mode":"never"}'),
      post(world, `${path}/stop`, good, '['.repeat(16_000)),
      post(world, `${path}/stop`, good, '{"mode":{"mode":"now"}}'),
      post(world, `${path}/pin`, good, '{"step":1e308,"pinned":true}'),
      get(world, `${path}/curves`, 'Origin: http://evil.example\r\n'),
    ]);
  },
};

const malformed = {
  name: 'HTTP that is malformed or too large',
  run(world) {
    const host = `Host: ${world.http}\r\n`;
    const long = 'x'.repeat(1 << 20);
    return refusedAll(world, [
      post(world, '/api/v1/token', '', long),
      get(world, `/${long}`),
      get(world, '/metrics', `X-Long: ${long}\r\n`),
      get(world, '/metrics', 'X: y\r\n'.repeat(5000)),
      get(world, `/api/v1/nothing?${'a=b&'.repeat(3000)}`),
      Buffer.from(`POST /api/v1/token HTTP/1.1\r\n${host}Content-Length: -1\r\n\r\n`),
      Buffer.from(`POST /api/v1/token HTTP/1.1\r\n${host}Content-Length: 999999999999999999999\r\n\r\n`),
      Buffer.from(`POST /api/v1/token HTTP/1.1\r\n${host}Content-Length: 5\r\nContent-Length: 50\r\n\r\n{"a":1}GET /metrics HTTP/1.1\r\n\r\n`),
      Buffer.from(`POST /api/v1/token HTTP/1.1\r\n${host}Transfer-Encoding: chunked\r\n\r\nffffffff\r\n${'x'.repeat(100_000)}`),
      Buffer.from(`BOGUS /metrics HTTP/1.1\r\n${host}\r\n`),
      Buffer.from(`DELETE /api/v1/jobs/${world.jobId} HTTP/1.1\r\n${host}\r\n`),
      Buffer.from(`GET /metrics HTTP/9.9\r\n${host}\r\n`),
      Buffer.from(`GET /metrics\x00x HTTP/1.1\r\n${host}\r\n`, 'latin1'),
      Buffer.from('GET\r\n\r\n'),
      Buffer.from('\r\n\r\n\r\n'),
      Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
      Buffer.alloc(100_000, 0xff),
    ], () => true);
  },
};

const manyStreams = {
  name: '150 event streams of the page that are never read',
  async run(world) {
    const sockets = Array.from({ length: 150 }, () => {
      const socket = connectTo(world.http);
      socket.on('error', () => {});
      socket.on('connect', () => { socket.write(get(world, `/api/v1/stream?job=${world.jobId}`)); });
      socket.pause();
      return socket;
    });
    try {
      return `nsactl list took ${(await world.alive()).toFixed(2)} s meanwhile`;
    } finally {
      for (const socket of sockets) socket.destroy();
    }
  },
};

export const pageAttacks = [halfSent, wrongHost, traversal, withoutRight, malformed, manyStreams];
