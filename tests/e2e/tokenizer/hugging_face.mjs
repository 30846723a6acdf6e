// Published tokenizers by Hugging Face's own library, which is written in Rust (@anush008/tokenizers is a binding of it).
//
//   node hugging_face.mjs files DIR                  qwen2_5.json, qwen3.json and deepseek_v3.json, as published; and of the gpt2.json and o200k.json of tiktoken.mjs
//                                                    in DIR, with their vocabularies, what other tokenizers do with a text: see MADE
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

function writeFiles(folder) {
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
