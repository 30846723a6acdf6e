// An object store that is hard to please: s3rver behind a door that verifies what s3rver does not (the signature, the hashes of what is sent, the clock) and fails some requests.
//
//   node server.mjs MODULES FOLDER PORT FAILURES SKEW
//
// Verifies AWS Signature Version 4 by its own arithmetic (key `AKIATEST`, secret `hush/hush+hush`). FAILURES: the share of requests that are answered by 503, or by nothing at all, or half. SKEW: seconds
// that its clock is ahead. Prints one line for each request: METHOD PATH STATUS.
import { createHash, createHmac } from 'node:crypto';
import http from 'node:http';
import { createRequire } from 'node:module';

const [modules, directory, port, failures, skew] = process.argv.slice(2);
const S3rver = createRequire(`${modules}/`)('s3rver');
const secret = 'hush/hush+hush';

// Small and seeded: the same requests fail in each run of the same order.
let state = 12345;
const random = () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648;

const sha256 = (data) => createHash('sha256').update(data).digest('hex');
const hmac = (key, data) => createHmac('sha256', key).update(data).digest();

class Refused extends Error {
  constructor(status, code) {
    super(code);
    this.status = status;
  }
}

function verify(request, body) {
  const match = /^AWS4-HMAC-SHA256 Credential=([^/]+)\/(\d+)\/([^/]+)\/s3\/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})$/.exec(request.headers.authorization ?? '');
  if (!match) throw new Refused(403, 'AccessDenied');
  const [, id, day, region, names, signature] = match;
  if (id !== 'AKIATEST') throw new Refused(403, 'InvalidAccessKeyId');
  const stamp = request.headers['x-amz-date'];
  const time = Date.parse(stamp.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/, '$1-$2-$3T$4:$5:$6Z'));
  if (Math.abs(time - (Date.now() + Number(skew) * 1000)) > 900_000) throw new Refused(403, 'RequestTimeTooSkewed');
  const [path, query = ''] = request.url.split('?');
  const headers = names.split(';').map((name) => `${name}:${request.headers[name].trim()}\n`).join('');
  const hash = request.headers['x-amz-content-sha256'];
  if (!names.split(';').includes('x-amz-content-sha256') || !names.split(';').includes('host')) throw new Refused(403, 'AccessDenied');
  const canonical = [request.method, path, query.split('&').sort().join('&'), headers, names, hash].join('\n');
  const scope = `${day}/${region}/s3/aws4_request`;
  const key = ['s3', 'aws4_request'].reduce((k, part) => hmac(k, part), hmac(hmac(`AWS4${secret}`, day), region));
  const wanted = hmac(key, ['AWS4-HMAC-SHA256', stamp, scope, sha256(canonical)].join('\n')).toString('hex');
  if (wanted !== signature) throw new Refused(403, 'SignatureDoesNotMatch');
  if (hash !== sha256(body)) throw new Refused(400, 'XAmzContentSHA256Mismatch');
  const md5 = request.headers['content-md5'];
  if (['PUT', 'POST'].includes(request.method) && md5 !== createHash('md5').update(body).digest('base64')) throw new Refused(400, 'BadDigest');
}

const inner = new S3rver({ port: 0, address: '127.0.0.1', silent: true, directory, configureBuckets: [{ name: 'bucket' }] });
const { port: behind } = await inner.run();

function forward(request, body, answer, cut) {
  const onward = http.request({ port: behind, host: '127.0.0.1', method: request.method, path: request.url, headers: { ...request.headers, authorization: `AWS4-HMAC-SHA256 Credential=S3RVER/x, SignedHeaders=host, Signature=${'0'.repeat(64)}`, 'x-amz-date': new Date().toISOString().replace(/[-:]|\.\d+/g, '') } }, (reply) => {
    const parts = [];
    reply.on('data', (part) => parts.push(part));
    reply.on('end', () => {
      const content = Buffer.concat(parts);
      answer.writeHead(reply.statusCode, reply.headers);
      console.log(request.method, request.url, reply.statusCode, cut ? 'cut' : '');
      if (!cut) return answer.end(content);
      answer.write(content.subarray(0, content.length / 2));
      setTimeout(() => answer.destroy(), 20);
    });
  });
  onward.on('error', () => answer.destroy());
  onward.end(body);
}

const door = http.createServer((request, answer) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const body = Buffer.concat(parts);
    try {
      const fails = random() < Number(failures) ? random() : 1;
      if (fails < 0.3) return answer.destroy(); // nothing was done
      if (fails < 0.6) throw new Refused(503, 'SlowDown');
      verify(request, body);
      if (request.method === 'PUT' && request.url.includes('/models/half/model.safetensors')) throw new Refused(403, 'AccessDenied');
      forward(request, body, answer, fails < 1); // done, but half of the answer is lost
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      console.log(request.method, request.url, error.status, error.message);
      answer.writeHead(error.status, { 'content-type': 'application/xml', ...(error.status === 503 ? { 'retry-after': '0' } : {}) });
      answer.end(`<?xml version="1.0" encoding="UTF-8"?><Error><Code>${error.message}</Code><Message>no</Message></Error>`);
    }
  });
});
door.listen(Number(port), '127.0.0.1', () => console.log(`ready ${behind}`));
