// OpenAI's tokenizers by js-tiktoken, a reader of OpenAI's own ranks that shares no code with ours.
//
//   node tiktoken.mjs files DIR              gpt2/vocab.json and gpt2/merges.txt, as GPT-2 was published, made of the ranks; gpt2.json, a tokenizer.json of the
//                                            same; cl100k.json and o200k.json, as Hugging Face's library converts these
//   node tiktoken.mjs encode FILE ENCODING   for each line of JSON ({"text": …}) the line of its tokens; gpt2, cl100k or o200k
//   node tiktoken.mjs version
//
// The environment variable JS_TIKTOKEN is the package's folder.
import fs from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';
import { pathToFileURL } from 'node:url';

const root = process.env.JS_TIKTOKEN;
const load = (file) => import(pathToFileURL(path.join(root, file)).href);
const ranksOf = async (name) => (await load(`dist/ranks/${name}.js`)).default;

const CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const SPACE = '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';
const UPPER = '\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}', LOWER = '\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}';
// The patterns of the published tokenizer.json: js-tiktoken has them in JavaScript's syntax.
const PATTERNS = {
  cl100k: `${CONTRACTION}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${SPACE}`,
  o200k: `[^\\r\\n\\p{L}\\p{N}]?[${UPPER}]*[${LOWER}]+${CONTRACTION}?|[^\\r\\n\\p{L}\\p{N}]?[${UPPER}]+[${LOWER}]*${CONTRACTION}?|\\p{N}{1,3}` +
    `| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${SPACE}`,
};

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
const WRITTEN = characters();
const spell = (token) => [...token].map((c) => WRITTEN[c.charCodeAt(0)]).join('');

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

// All pairs of tokens that make a token, in the order of their ranks.
function pairsOf(token, rankOf) {
  const pairs = [];
  for (let i = 1; i < token.length; ++i) {
    const left = rankOf.get(token.slice(0, i)), right = rankOf.get(token.slice(i));
    if (left !== undefined && right !== undefined) pairs.push([left, right, i]);
  }
  pairs.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return pairs.map(([, , i]) => [token.slice(0, i), token.slice(i)]);
}

const added = (specials) => Object.entries(specials).map(([content, id]) => ({ id, content, special: true }));
const byteLevel = (own) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: own });

async function writeGpt2(folder) {
  const ranks = await ranksOf('gpt2');
  const tokens = tokensOf(ranks);
  const rankOf = new Map(tokens.map((token, rank) => [token, rank]));
  const vocab = Object.fromEntries([...tokens.map((token, rank) => [spell(token), rank]), ...Object.entries(ranks.special_tokens)]);
  const merges = tokens.filter((token) => token.length > 1).map((token) => pairOf(token, rankOf).map(spell));
  fs.mkdirSync(path.join(folder, 'gpt2'));
  fs.writeFileSync(path.join(folder, 'gpt2/vocab.json'), JSON.stringify(vocab));
  fs.writeFileSync(path.join(folder, 'gpt2/merges.txt'), `#version: 0.2\n${merges.map((merge) => merge.join(' ')).join('\n')}\n`);
  fs.writeFileSync(path.join(folder, 'gpt2.json'), JSON.stringify({
    version: '1.0', added_tokens: added(ranks.special_tokens), normalizer: null, pre_tokenizer: byteLevel(true), model: { type: 'BPE', vocab, merges },
  }));
}

async function writeLarge(folder, name) {
  const ranks = await ranksOf(`${name}_base`);
  const tokens = tokensOf(ranks);
  const rankOf = new Map();
  tokens.forEach((token, rank) => rankOf.set(token, rank));
  const vocab = {};
  const merges = [];
  tokens.forEach((token, rank) => {
    vocab[spell(token)] = rank;
    for (const pair of pairsOf(token, rankOf)) merges.push(pair.map(spell));
  });
  const split = { type: 'Split', pattern: { Regex: PATTERNS[name] }, behavior: 'Isolated', invert: false };
  fs.writeFileSync(path.join(folder, `${name}.json`), JSON.stringify({
    version: '1.0', added_tokens: added(ranks.special_tokens), normalizer: null,
    pre_tokenizer: { type: 'Sequence', pretokenizers: [split, byteLevel(false)] },
    model: { type: 'BPE', vocab, merges, ignore_merges: true },
  }));
}

// The ranks, with white space and the long s as Unicode has them: JavaScript's \s has U+FEFF and not U+0085, and js-tiktoken writes all cases out.
async function encoderOf(name) {
  const { Tiktoken } = await load('dist/lite.js');
  if (name === 'gpt2') return new Tiktoken(await ranksOf('gpt2'));
  const ranks = await ranksOf(`${name}_base`);
  const pattern = ranks.pat_str.replaceAll("'S|", "'S|'\u017f|").replaceAll('\\s', '\\p{White_Space}').replaceAll('\\S', '\\P{White_Space}');
  return new Tiktoken({ ...ranks, pat_str: pattern });
}

async function encode(file, name) {
  const encoder = await encoderOf(name);
  for await (const line of readline.createInterface({ input: fs.createReadStream(file), crlfDelay: Infinity })) {
    if (line) process.stdout.write(`${encoder.encode(JSON.parse(line).text, [], []).join(' ')}\n`);
  }
}

const [command, argument, encoding] = process.argv.slice(2);
if (command === 'files') { await writeGpt2(argument); await writeLarge(argument, 'cl100k'); await writeLarge(argument, 'o200k'); }
if (command === 'encode') await encode(argument, encoding);
if (command === 'version') console.log(JSON.parse(fs.readFileSync(path.join(root, 'package.json'))).version);
