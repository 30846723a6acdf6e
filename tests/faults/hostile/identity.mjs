// Callers who are not who they say, or want what is not theirs. docs/security.md promises what is checked here.
import crypto from 'node:crypto';

import { each, require, tally } from './wire.mjs';

const sha256 = (text) => crypto.createHash('sha256').update(text).digest();
const codesOf = (answers) => tally(answers.map(({ code }) => code));
const others = (world) => world.methods.filter(({ name }) => name !== 'Join');

// What a role must not call: everything of agents, and what its row of the table in docs/security.md leaves out.
const READS = ['GetJob', 'ListJobs', 'WatchJob', 'WatchEvents', 'WatchRecords', 'GetCurves', 'StreamLogs', 'ListSavedStacks', 'GetSavedStacks', 'ListCheckpoints', 'ListNodes', 'ListUse', 'GetVersion'];
const SUBMITS = [...READS, 'SubmitJob', 'StopJob', 'ResumeJob', 'DeleteJob', 'EditJob', 'DumpStack', 'ProfileJob', 'VerifyCheckpoint'];

async function callAll(world, methods, options, code) {
  const answers = await each(methods, 8, async ({ name }) => {
    const answer = await world.call(name, { job: world.jobId }, options);
    require(answer.code === code, `${name}: ${answer.code} ${answer.message}`);
    return answer;
  });
  return `${codesOf(answers)} for every method`;
}

function forbidden(role, may) {
  return {
    name: `a ${role}'s token on what its role may not call`,
    run: (world) => callAll(world, others(world).filter(({ name }) => !may.includes(name)), { token: world.tokens[role] }, 'PERMISSION_DENIED'),
  };
}

// Every method whose request names a job, with the id and the name of another's, and with such as nobody has: the answers are the same.
const ofAnotherJob = {
  name: "a submitter's token on another's job, by every method that names one",
  async run(world) {
    const methods = world.methods.filter(({ service, type }) => service === 'CoordinatorService' && type.field.some(({ name }) => name === 'job'));
    require(methods.length >= 16, `${methods.length} methods name a job`);
    const madeUp = { [world.jobId]: 'jabcdefghijk2', [world.jobName]: 'nobody' };
    const asked = methods.flatMap(({ name }) => Object.keys(madeUp).map((job) => ({ name, job })));
    const ask = (name, job) => world.call(name, { job, stop: { mode: 'STOP_MODE_NOW' }, note: 'not mine' }, { token: world.tokens.submitter });
    const answers = await each(asked, 8, async ({ name, job }) => {
      const answer = await ask(name, job);
      require(answer.code === 'NOT_FOUND', `${name} of ${job}: ${answer.code} ${answer.message}`);
      const none = await ask(name, madeUp[job]);
      require(none.code === answer.code && none.message.replace(madeUp[job], job) === answer.message, `${name} of ${job} tells that it exists: ${answer.message}`);
      return answer;
    });
    return codesOf(answers);
  },
};

const seenInLists = {
  name: "a submitter's lists, watched for another's job",
  async run(world) {
    const answers = await each([['ListJobs', {}], ['WatchEvents', {}], ['ListNodes', {}], ['ListUse', {}], ['GetVersion', {}]], 1, async ([name, request]) => {
      const answer = await world.call(name, request, { token: world.tokens.submitter });
      require(answer.code === 'OK', `${name}: ${answer.code} ${answer.message}`);
      require(!JSON.stringify(answer.response).includes(world.jobId), `${name} names the other's job`);
      require(name !== 'ListUse' || (answer.response.owners ?? []).length <= 1, `${name} names other owners`);
      return answer;
    });
    return codesOf(answers);
  },
};

const inTheirPlace = {
  name: "a submitter's job with another's request id or out_dir",
  async run(world) {
    const spec = (await world.job()).spec;
    const token = world.tokens.submitter;
    const answers = [
      await world.call('SubmitJob', { request_id: world.requestId, spec }, { token }),
      await world.call('SubmitJob', { request_id: world.requestId, spec: { ...spec, name: 'mine' } }, { token }),
      await world.call('SubmitJob', { spec: { ...spec, name: 'mine' } }, { token }),
      await world.call('SubmitJob', { spec: { ...spec, name: 'mine', train: { ...spec.train, out_dir: `${spec.train.out_dir}/within` } } }, { token }),
      await world.call('DeleteJob', { request_id: world.requestId, job: 'mine' }, { token }),
    ];
    for (const { code, message, response } of answers) {
      require(code !== 'OK', `accepted: ${JSON.stringify(response ?? {}).slice(0, 200)}`);
      require(!message.includes(world.jobId), `the refusal names the other's job: ${message}`);
    }
    return codesOf(answers);
  },
};

// Another node's agent: it has joined, so the coordinator knows who it is.
async function join(world) {
  if (world.joined) return;
  const { code, message } = await world.call('Join', { node: 'elsewhere', join_token: world.tokens.join, secret_sha256: sha256(world.tokens.agent) });
  require(code === 'OK', `Join: ${code} ${message}`);
  world.joined = true;
}

const beatOf = (node, more = {}) => ({ node: { name: node, cpu_slots: 1, cores: 1, agent_version: 'hostile', ...more.node }, incarnation: 'forged', workers: more.workers ?? [] });

const asAnotherNode = {
  name: "an agent's secret speaking for another node",
  async run(world) {
    await join(world);
    const job = await world.job();
    const about = { job_id: world.jobId, generation: job.generation, rank: 0 };
    const calls = [
      ['Heartbeat', beatOf(world.node)],
      ['Heartbeat', beatOf(world.node, { workers: [{ ...about, state: 'STATE_EXITED', exit_code: 1 }] })],
      ['ReportRecords', { ...about, records: [{ sequence: job.progress.step + 10, event: { reason: 'FORGED' } }] }],
      ['ReportLog', { ...about, offset: 0, data: Buffer.from('forged\n') }],
      ['ReportDump', { dump_id: '0', rank: 0, node: world.node, stacks: 'forged' }],
    ];
    const answers = await each(calls, 1, async ([name, request]) => {
      const answer = await world.call(name, request, { token: world.tokens.agent });
      // Jobs of others do not exist for it.
      require(answer.code === (request.job_id ? 'NOT_FOUND' : 'PERMISSION_DENIED'), `${name}: ${answer.code} ${answer.message}`);
      return answer;
    });
    return codesOf(answers);
  },
};

const lyingAgent = {
  name: 'an agent that says a job of another node ended on its own',
  async run(world) {
    await join(world);
    const job = await world.job();
    const worker = { job_id: world.jobId, generation: job.generation, rank: 0, pid: 1, state: 'STATE_EXITED', exit_code: 1 };
    const beat = beatOf('elsewhere', { node: { cpu_slots: 0 }, workers: [worker, { ...worker, state: 'STATE_RUNNING' }, { ...worker, generation: 99 }] });
    const answers = [
      ...(await each(Array(20).fill(beat), 1, (request) => world.call('Heartbeat', request, { token: world.tokens.agent }))),
      await world.call('ReportDump', { dump_id: '0', node: 'elsewhere', stacks: 'forged' }, { token: world.tokens.agent }),
    ];
    for (const { response } of answers) require(!response?.desired?.length, 'it was given a job');
    return codesOf(answers);
  },
};

const joinAgain = {
  name: 'joining as the node that runs the job',
  async run(world) {
    await join(world);
    const mine = sha256('another secret of mine');
    const answers = [
      await world.call('Join', { node: world.node, join_token: world.tokens.join, secret_sha256: mine }),
      await world.call('Join', { node: 'elsewhere', join_token: world.tokens.join, secret_sha256: mine }),
      await world.call('Join', { node: world.node, join_token: world.tokens.operator, secret_sha256: mine }),
      await world.call('Join', { node: world.node, secret_sha256: mine }),
      await world.call('Join', { node: world.node, secret_sha256: mine }, { address: world.socket }),
      await world.call('Join', { node: '../../x', secret_sha256: mine }, { address: world.socket }),
      await world.call('Heartbeat', beatOf(world.node), { address: world.socket }),
      await world.call('Heartbeat', beatOf(world.node), { address: world.socket, token: 'a guess that is long enough' }),
    ];
    for (const { code } of answers) require(code !== 'OK', `accepted: ${codesOf(answers)}`);
    return codesOf(answers);
  },
};

const wrongTokens = {
  name: 'wrong tokens: cut, extended, hashed, of another kind, 6 kB, 20 kB',
  async run(world) {
    const good = world.tokens.operator;
    const headers = ['', 'Bearer', 'Bearer ', good, `Basic ${good}`, `Bearer ${good.slice(0, -1)}`, `Bearer ${good}0`, `Bearer ${good.toUpperCase()}x`,
      `Bearer ${sha256(good).toString('hex')}`, `Bearer ${world.tokens.join}`, `Bearer ${'x'.repeat(6000)}`].map((value) => [['authorization', value]]);
      const answers = await each(headers, 4, (pairs) => world.call('ListJobs', {}, { headers: pairs }));
    for (const [at, { code, message }] of answers.entries()) {
      require(code === 'UNAUTHENTICATED', `${headers[at][0][1].slice(0, 12)}: ${code} ${message}`);
      require(!message.includes(good.slice(0, 16)), 'the refusal shows the token');
    }
    const long = await world.call('ListJobs', {}, { headers: [['authorization', `Bearer ${'x'.repeat(20_000)}`]] });
    require(long.code !== 'OK', 'a header of 20 kB was accepted');
    return `${codesOf(answers)}, ${long.code} 1`;
  },
};

export const identityAttacks = [
  { name: 'no token on any method', run: (world) => callAll(world, others(world), {}, 'UNAUTHENTICATED') },
  { name: 'a wrong token on any method', run: (world) => callAll(world, others(world), { token: 'f'.repeat(64) }, 'UNAUTHENTICATED') },
  wrongTokens, forbidden('viewer', READS), forbidden('submitter', SUBMITS), ofAnotherJob, seenInLists, inTheirPlace,
  { name: "an agent's secret on what people call",
    async run(world) {
      await join(world);
      return callAll(world, world.methods.filter(({ service }) => service === 'CoordinatorService'), { token: world.tokens.agent }, 'PERMISSION_DENIED');
    } },
  asAnotherNode, lyingAgent, joinAgain,
];
