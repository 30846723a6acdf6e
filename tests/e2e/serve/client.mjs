// Asks a server with npm's openai and prints what it answered, as one line of JSON.
//
//   node client.mjs URL MODEL       URL ends in /v1
//
// The environment variable OPENAI_PACKAGE is the package's folder.
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const { default: OpenAI } = await import(pathToFileURL(path.join(process.env.OPENAI_PACKAGE, 'index.mjs')).href);
const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: 'any', maxRetries: 0 });
const asked = { model, prompt: 'To be', max_tokens: 40, seed: 7 };

// The parts of a stream: the whole text, how many there were, the last reason and the usage.
async function streamed(request) {
  const result = { text: '', parts: 0, reason: null, usage: null };
  for await (const part of await client.completions.create({ ...request, stream: true, stream_options: { include_usage: true } })) {
    result.usage = part.usage ?? result.usage;
    for (const choice of part.choices) {
      result.parts += 1;
      result.text += choice.text;
      result.reason = choice.finish_reason ?? result.reason;
    }
  }
  return result;
}

// The same of a chat.
const talk = { model, messages: [{ role: 'user', content: 'To be?' }], max_completion_tokens: 20, seed: 7 };
async function chatted(request) {
  const result = { text: '', roles: [], reason: null, usage: null };
  for await (const part of await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } })) {
    result.usage = part.usage ?? result.usage;
    for (const choice of part.choices) {
      if (choice.delta.role) result.roles.push(choice.delta.role);
      result.text += choice.delta.content ?? '';
      result.reason = choice.finish_reason ?? result.reason;
    }
  }
  return result;
}

// What the client makes of an error.
async function refused(request) {
  try {
    await client.completions.create(request);
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, param: error.param, message: error.message };
  }
  return null;
}

// The client leaves after the first part.
async function left() {
  const stream = await client.completions.create({ ...asked, max_tokens: 200000, stream: true });
  for await (const part of stream) return part.choices[0].text.length > 0;
}

const models = [];
for await (const one of client.models.list()) models.push(one.id);
console.log(JSON.stringify({
  models,
  model: (await client.models.retrieve(model)).id,
  whole: await client.completions.create(asked),
  stream: await streamed(asked),
  stopped: await streamed({ ...asked, temperature: 0, stop: ['o', 'e', ' '] }),
  wrong: await refused({ ...asked, n: 0 }),
  other: await refused({ ...asked, model: 'gpt-4' }),
  long: await refused({ ...asked, prompt: 'x'.repeat(10000) }),
  chat: await client.chat.completions.create({ ...talk, logprobs: true, top_logprobs: 2 }),
  chatStream: await chatted(talk),
  left: await left(),
}));
