#!/usr/bin/env node
// Writes the same rows as Parquet files of many kinds with two writers that know nothing of each other or of our reader.
//
//   tests/e2e/parquet/writers.mjs MODULES FOLDER             tests/e2e/parquet_test.py runs it; MODULES has node_modules
//   tests/e2e/parquet/writers.mjs MODULES FOLDER --speed     instead larger files of one kind each, to measure
//
// FOLDER/all.jsonl and some.jsonl get the rows as JSON lines: those without nulls, and those with, whose nulls are left out. A file whose name begins
// with all- or some- has these rows. The file bad.json maps further files and columns to a part of the message that must refuse them.
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import zlib from 'node:zlib';

const [modules, folder, speed] = process.argv.slice(2);
const load = createRequire(`${modules}/`);
const { DuckDBInstance } = load('@duckdb/node-api');
const { parquetWriteFile } = await import(pathToFileURL(path.join(modules, 'node_modules/hyparquet-writer/src/node.js')));
const at = (name) => path.join(folder, name);

// Deterministic: a linear congruential generator.
let seed = 1;
const draw = (n) => { seed = (Math.imul(seed, 1103515245) + 12345) >>> 0; return Math.floor(seed / 65536) % n; };

const WORDS = 'attention is sparse: a query reads a summary of the past, few blocks and its neighbours é 漢字 🙂 "quoted" \\ \t end'.split(' ');
function text(i) {
  if (i % 41 === 0) return '';
  if (i % 7 === 0) return `the same text for many rows, number ${i % 3}`;
  if (i % 97 === 0) return 'long '.repeat(2000 + (i % 3000));
  let line = `https://example.org/articles/2026/${String(i).padStart(6, '0')} `;
  for (let n = draw(60); n > 0; --n) line += `${WORDS[draw(WORDS.length)]} `;
  return line;
}
function rowsOf(count) { return Array.from({ length: count }, (_, i) => text(i)); }

function writeJsonLines(name, rows) {
  fs.writeFileSync(at(name), rows.filter((row) => row !== null).map((row) => `${JSON.stringify({ text: row })}\n`).join(''));
}

const compressors = {
  GZIP: (bytes) => new Uint8Array(zlib.gzipSync(bytes)),
  ZSTD: (bytes) => new Uint8Array(execFileSync('zstd', ['-c', '-q'], { input: bytes, maxBuffer: 1 << 30 })),
};

async function withHyparquet(kind, rows) {
  for (const codec of ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'ZSTD']) {
    for (const encoding of ['PLAIN', 'RLE_DICTIONARY', 'DELTA_LENGTH_BYTE_ARRAY', 'DELTA_BYTE_ARRAY']) {
      // zstd is a process for each page.
      const smallPage = codec === 'ZSTD' ? 40000 : 4000;
      for (const [size, pageSize, rowGroupSize] of [['small', smallPage, 500], ['large', 1 << 20, 100000]]) {
        await parquetWriteFile({
          filename: at(`${kind}-hyparquet-${codec}-${encoding}-${size}.parquet`),
          columnData: [
            { name: 'id', data: rows.map((_, i) => i), type: 'INT32' },
            { name: 'text', data: rows, type: 'STRING', encoding, nullable: kind === 'some' },
          ],
          codec, compressors, pageSize, rowGroupSize,
        });
      }
    }
  }
}

const connection = await (await DuckDBInstance.create(':memory:')).connect();

async function fill(table, rows) {
  fs.writeFileSync(at('rows.ndjson'), rows.map((row, i) => `${JSON.stringify({ id: i, text: row })}\n`).join(''));
  await connection.run(`CREATE OR REPLACE TABLE ${table} AS SELECT id, {'url': 'u' || id, 'tags': [id, id + 1]} AS meta, ['x', 'y'] AS list, text
    FROM read_json('${at('rows.ndjson')}', columns = {id: 'INTEGER', text: 'VARCHAR'}, maximum_object_size = 100000000) ORDER BY id`);
  fs.unlinkSync(at('rows.ndjson'));
}

const copy = (table, name, options) => connection.run(`COPY (SELECT * FROM ${table} ORDER BY id) TO '${at(name)}' (FORMAT parquet, ${options})`);

async function withDuckdb(kind, rows) {
  await fill(`rows_${kind}`, rows);
  for (const codec of ['uncompressed', 'snappy', 'gzip', 'brotli', 'zstd', 'lz4_raw']) {
    for (const version of ['V1', 'V2']) {
      for (const [size, limits] of [['dictionary', 'DICTIONARY_SIZE_LIMIT 1000000'], ['plain', 'DICTIONARY_SIZE_LIMIT 1'], ['default', '']]) {
        const options = [`CODEC '${codec}'`, `PARQUET_VERSION ${version}`, 'ROW_GROUP_SIZE 2048', limits].filter(Boolean).join(', ');
        await copy(`rows_${kind}`, `${kind}-duckdb-${codec}-${version}-${size}.parquet`, options);
      }
    }
  }
}

// Texts in structures and lists, with nulls and empty lists everywhere; the same as JSON lines.
async function nested() {
  await connection.run(`CREATE TABLE nested AS SELECT id,
    CASE WHEN id % 7 = 2 THEN NULL ELSE {'text': CASE WHEN id % 5 = 1 THEN NULL ELSE 't' || id END, 'n': id} END AS doc,
    CASE id % 6 WHEN 1 THEN NULL WHEN 2 THEN [] WHEN 3 THEN [NULL] WHEN 4 THEN ['a' || id, NULL, 'b'] ELSE ['x' || id, repeat('y', id % 50), 'z'] END AS texts,
    CASE WHEN id % 4 = 1 THEN NULL ELSE {'parts': CASE WHEN id % 3 = 0 THEN ['p' || id, 'q'] ELSE NULL END} END AS deep
    FROM range(5000) t(id)`);
  for (const version of ['V1', 'V2']) await copy('nested', `nested-${version}.parquet`, `PARQUET_VERSION ${version}, ROW_GROUP_SIZE 2048`);
  await connection.run(`COPY (SELECT * FROM nested ORDER BY id) TO '${at('nested.jsonl')}' (FORMAT json)`);
}

if (speed) {
  const rows = rowsOf(100000);
  await fill('speed', rows);
  for (const codec of ['uncompressed', 'snappy', 'gzip', 'brotli', 'zstd', 'lz4_raw']) {
    for (const version of ['V1', 'V2']) await copy('speed', `${codec}-${version}.parquet`, `CODEC '${codec}', PARQUET_VERSION ${version}`);
  }
  writeJsonLines('rows.jsonl', rows);
  execFileSync('zstd', ['-q', at('rows.jsonl')]);
} else {
  const all = rowsOf(5000);
  const some = all.map((row, i) => (i % 11 === 3 || (i > 1000 && i < 1200) ? null : row));
  for (const [kind, rows] of [['all', all], ['some', some]]) {
    writeJsonLines(`${kind}.jsonl`, rows);
    await withHyparquet(kind, rows);
    await withDuckdb(kind, rows);
  }
  await connection.run('CREATE TABLE nothing AS SELECT NULL::INTEGER AS id, NULL::VARCHAR AS text FROM range(3000)');
  await copy('nothing', 'nulls-duckdb.parquet', "CODEC 'snappy'");
  await copy('(SELECT * FROM rows_all WHERE id < 0)', 'empty-duckdb.parquet', "CODEC 'snappy'");
  await nested();
  fs.writeFileSync(at('bad.json'), JSON.stringify([
    ['all-duckdb-snappy-V1-default.parquet', 'meta', "column 'meta' is nested"],
    ['all-duckdb-snappy-V1-default.parquet', 'id', 'is not of type BYTE_ARRAY'],
    ['all-duckdb-snappy-V1-default.parquet', 'body', "no column 'body' (meta.url, list.list.element, text)"],
  ]));
}
