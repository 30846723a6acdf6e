// Data files of every format, and their documents.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/data/read/documents.h"

namespace nsa::train {

inline void Write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string Gzip(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = text.size();
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = out.size();
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

inline std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// The same as `zstd --long=28` writes into a pipe: with a window of 256 MiB.
inline std::string LongZstd(const std::string& text) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 28);
  std::string out(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_outBuffer to = {out.data(), out.size(), 0};
  // In two parts, so that the size is not known at the beginning.
  ZSTD_inBuffer from = {text.data(), text.size() / 2, 0};
  ZSTD_compressStream2(context, &to, &from, ZSTD_e_continue);
  from.size = text.size();
  EXPECT_EQ(ZSTD_compressStream2(context, &to, &from, ZSTD_e_end), 0u);
  ZSTD_freeCCtx(context);
  out.resize(to.pos);
  return out;
}

// JSON lines of many sizes with quotes, escapes and non-ASCII text, and some blank lines.
inline std::string ManyLines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += absl::StrCat("{\"id\": ", i, ", \"text\": \"document ", i, " \\u00e9 é \\\"q\\\" ",
                          std::string((i * 7919) % 5000, 'a' + i % 26), "\"}\n");
    if (i % 10 == 0) lines += "\n";
  }
  return lines;
}

inline std::vector<std::string> ReadAllDocuments(const DocumentOptions& options) {
  ReadProgress progress;
  DocumentReader reader(options, &progress);
  std::vector<std::string> texts;
  Document document;
  while (true) {
    const auto found = reader.Next(&document);
    EXPECT_OK(found);
    if (!found.ok() || !*found) return texts;
    texts.push_back(document.text);
  }
}

}  // namespace nsa::train
