// GPT-2's tokenizer by js-tiktoken, a reader of OpenAI's own ranks that shares no code with ours.
//
//   node tiktoken.mjs files DIR     vocab.json and merges.txt, as GPT-2 was published, made of the ranks; and DIR/hf.json, a tokenizer.json of the same
//   node tiktoken.mjs encode FILE   for each line of JSON ({"text": …}) the line of its tokens
//   node tiktoken.mjs version
//
// The environment variable JS_TIKTOKEN is the package's folder.
import fs from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';
import { pathToFileURL } from 'node:url';

const root = process.env.JS_TIKTOKEN;
const load = (file) => import(pathToFileURL(path.join(root, file)).href);

async function gpt2() {
  return (await load('dist/ranks/gpt2.js')).default;
}

// The tokens by rank, each as bytes in latin1.
function tokensOf(ranks) {
  const tokens = [];
  for (const line of ranks.bpe_ranks.split('\n').filter(Boolean)) {
    const [, first, ...words] = line.split(' ');
    words.forEach((word, i) => { tokens[Number(first) + i] = Buffer.from(word, 'base64').toString('latin1'); });
  }
  return tokens;
}

// How GPT-2's files write bytes.
function characters() {
  const plain = (b) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(plain(b) ? b : next++));
}

// The two tokens that are merged last into a token: byte pairs with lower ranks are merged until two are left.
function pairOf(token, rankOf) {
  const parts = [...token];
  while (parts.length > 2) {
    let best = -1;
    let bestRank = rankOf.get(token);
    for (let i = 0; i + 1 < parts.length; ++i) {
      const rank = rankOf.get(parts[i] + parts[i + 1]);
      if (rank !== undefined && rank < bestRank) [best, bestRank] = [i, rank];
    }
    parts.splice(best, 2, parts[best] + parts[best + 1]);
  }
  return parts;
}

async function writeFiles(folder) {
  const ranks = await gpt2();
  const tokens = tokensOf(ranks);
  const rankOf = new Map(tokens.map((token, rank) => [token, rank]));
  const written = characters();
  const spell = (token) => [...token].map((c) => written[c.charCodeAt(0)]).join('');
  const vocab = Object.fromEntries([...tokens.map((token, rank) => [spell(token), rank]), ...Object.entries(ranks.special_tokens)]);
  const merges = tokens.filter((token) => token.length > 1).map((token) => pairOf(token, rankOf).map(spell).join(' '));
  fs.writeFileSync(path.join(folder, 'vocab.json'), JSON.stringify(vocab));
  fs.writeFileSync(path.join(folder, 'merges.txt'), `#version: 0.2\n${merges.join('\n')}\n`);
  fs.writeFileSync(path.join(folder, 'hf.json'), JSON.stringify({
    version: '1.0',
    added_tokens: [{ id: ranks.special_tokens['<|endoftext|>'], content: '<|endoftext|>', special: true }],
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    model: { type: 'BPE', vocab, merges: merges.map((merge) => merge.split(' ')) },
  }));
}

async function encode(file) {
  const { Tiktoken } = await load('dist/lite.js');
  const encoder = new Tiktoken(await gpt2());
  for await (const line of readline.createInterface({ input: fs.createReadStream(file), crlfDelay: Infinity })) {
    if (line) process.stdout.write(`${encoder.encode(JSON.parse(line).text, [], []).join(' ')}\n`);
  }
}

const [command, argument] = process.argv.slice(2);
if (command === 'files') await writeFiles(argument);
if (command === 'encode') await encode(argument);
if (command === 'version') console.log(JSON.parse(fs.readFileSync(path.join(root, 'package.json'))).version);
