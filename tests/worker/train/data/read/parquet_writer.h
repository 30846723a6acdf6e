// A small writer of Parquet files with one column of texts, for tests. It shares no code with the
// reader.
#pragma once

#include <lz4.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/train/data/data_files.h"

namespace nsa::train {

// Thrift's compact protocol.
class ThriftText {
 public:
  ThriftText& I32(int id, int64_t value) { return Header(id, 5).Zigzag(value); }
  ThriftText& I64(int id, int64_t value) { return Header(id, 6).Zigzag(value); }
  ThriftText& Bool(int id, bool value) { return Header(id, value ? 1 : 2); }
  ThriftText& Text(int id, const std::string& value) {
    Header(id, 8).Varint(value.size());
    out_ += value;
    return *this;
  }
  ThriftText& Struct(int id, const ThriftText& value) {
    Header(id, 12);
    out_ += value.out_ + '\0';
    return *this;
  }
  ThriftText& Structs(int id, const std::vector<ThriftText>& values) {
    Header(id, 9);
    out_ += static_cast<char>(15 << 4 | 12);
    Varint(values.size());
    for (const ThriftText& value : values) out_ += value.out_ + '\0';
    return *this;
  }
  std::string bytes() const { return out_ + '\0'; }

 private:
  ThriftText& Header(int id, int type) {
    if (id > last_ && id - last_ < 16) {
      out_ += static_cast<char>((id - last_) << 4 | type);
    } else {
      out_ += static_cast<char>(type);
      Zigzag(id);
    }
    last_ = id;
    return *this;
  }
  ThriftText& Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
    return *this;
  }
  ThriftText& Zigzag(int64_t value) {
    return Varint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }

  std::string out_;
  int last_ = 0;
};

inline std::string U32(uint32_t value) {
  std::string out(4, '\0');
  std::memcpy(out.data(), &value, 4);
  return out;
}

using Rows = std::vector<std::optional<std::string>>;

// A text of a nested column, or the place where there is none, with its levels.
struct Entry {
  int repetition = 0;
  int definition = 0;
  std::string value;  // if the definition level is the largest
};
using NestedRows = std::vector<std::vector<Entry>>;

struct ParquetOptions {
  std::string column = "text";
  bool optional = true;
  // Of a nested column instead its elements from the top on, and whether each is required (0),
  // optional (1) or repeated (2).
  std::vector<std::pair<std::string, int>> path;
  // Beside the last of them in the same structure: a column with as many entries.
  std::string twin;
  bool empty_group = false;  // begins with a row group without rows
  bool dictionary = false;
  bool v2 = false;
  bool crc = true;
  int codec = 0;  // 0 none, 1 Snappy, 4 Brotli (both without copies), 2 gzip, 6 Zstandard, 7 LZ4
  size_t page_rows = 3;    // rows of a page; of a list elements
  size_t group_pages = 2;  // pages of a row group
};

// RFC 7932: a window of 16 bits, then blocks of 64 KiB or less as they are, then the last, empty
// one.
inline std::string Brotli(const std::string& bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 1 << 16) {
    const std::string part = bytes.substr(i, 1 << 16);
    const auto header = static_cast<uint32_t>((part.size() - 1) << 3 | 1 << 19);
    out += U32(i == 0 ? header << 1 : header).substr(0, 3) + part;
  }
  return out.empty() ? "\x06" : out + '\x03';
}

inline std::string Lz4(const std::string& bytes) {
  std::string out(static_cast<size_t>(LZ4_compressBound(static_cast<int>(bytes.size()))), '\0');
  out.resize(static_cast<size_t>(LZ4_compress_default(
      bytes.data(), out.data(), static_cast<int>(bytes.size()), static_cast<int>(out.size()))));
  return out;
}

inline std::string Packed(int codec, const std::string& bytes) {
  if (codec == 2) return Gzip(bytes);
  if (codec == 6) return Zstd(bytes);
  if (codec == 4) return Brotli(bytes);
  if (codec == 7) return Lz4(bytes);
  if (codec != 1) return bytes;
  std::string out;
  uint64_t size = bytes.size();
  for (; size >= 0x80; size >>= 7) out += static_cast<char>(size | 0x80);
  out += static_cast<char>(size);
  for (size_t i = 0; i < bytes.size(); i += 60) {
    const std::string part = bytes.substr(i, 60);
    out += static_cast<char>((part.size() - 1) << 2) + part;
  }
  return out;
}

// The file, in memory.
class ParquetText {
 public:
  ParquetText(const Rows& rows, ParquetOptions options) : options_(std::move(options)) {
    if (options_.path.empty()) options_.path = {{options_.column, options_.optional ? 1 : 0}};
    for (const auto& row : rows) rows_.push_back({{0, row ? Definition() : 0, row.value_or("")}});
  }
  ParquetText(NestedRows rows, ParquetOptions options)
      : rows_(std::move(rows)), options_(std::move(options)) {}

  // The rows of ParquetOptions::twin.
  ParquetText& Twin(NestedRows rows) {
    twin_ = std::move(rows);
    return *this;
  }

  std::string Write() {
    out_ = "PAR1";
    if (options_.empty_group) EmptyGroup();
    for (size_t at = 0; at < rows_.size(); at += options_.page_rows * options_.group_pages) {
      Group(at, std::min(rows_.size(), at + options_.page_rows * options_.group_pages));
    }
    ThriftText root, other;
    root.Text(4, "schema").I32(5, 2);
    other.I32(1, 1).I32(3, 0).Text(4, "id");
    std::vector<ThriftText> schema = {root, other};
    for (const auto& [name, repetition] : options_.path) {
      const bool leaf = schema.size() == options_.path.size() + 1;
      ThriftText element;
      if (leaf) element.I32(1, 6);
      element.I32(3, repetition).Text(4, name);
      if (leaf) element.I32(6, 0);
      const bool parent = schema.size() == options_.path.size();
      if (!leaf) element.I32(5, parent && !twin_.empty() ? 2 : 1);
      schema.push_back(element);
    }
    if (!twin_.empty()) {
      ThriftText element;
      element.I32(1, 6).I32(3, options_.path.back().second).Text(4, options_.twin).I32(6, 0);
      schema.push_back(element);
    }
    ThriftText footer;
    footer.I32(1, 1)
        .Structs(2, schema)
        .I64(3, static_cast<int64_t>(rows_.size()))
        .Structs(4, groups_);
    const std::string bytes = footer.bytes();
    return out_ + bytes + U32(static_cast<uint32_t>(bytes.size())) + "PAR1";
  }

 private:
  // The largest levels.
  int Definition() const {
    return static_cast<int>(std::ranges::count_if(
        options_.path, [](const auto& element) { return element.second != 0; }));
  }
  bool IsList() const {
    return std::ranges::any_of(options_.path,
                               [](const auto& element) { return element.second == 2; });
  }
  bool HasText(const Entry& entry) const { return entry.definition == Definition(); }

  // As pyarrow writes it for a table without rows.
  void EmptyGroup() {
    ThriftText meta, chunk, group;
    meta.I32(1, 6).I32(4, options_.codec).I64(5, 0).I64(7, 0).I64(9, 0);
    chunk.I64(2, 0).Struct(3, meta);
    group.Structs(1, {chunk, chunk}).I64(2, 0).I64(3, 0);
    groups_.push_back(group);
  }

  void Group(size_t begin, size_t end) {
    ThriftText other, group;
    other.I64(2, 4);
    std::vector<ThriftText> chunks = {other, Chunk(rows_, begin, end)};
    if (!twin_.empty()) chunks.push_back(Chunk(twin_, begin, end));
    group.Structs(1, chunks).I64(2, 0).I64(3, static_cast<int64_t>(end - begin));
    groups_.push_back(group);
  }

  ThriftText Chunk(const NestedRows& rows, size_t begin, size_t end) {
    std::vector<Entry> entries;
    for (size_t i = begin; i < end; ++i) {
      entries.insert(entries.end(), rows[i].begin(), rows[i].end());
    }
    const auto first = static_cast<int64_t>(out_.size());
    dictionary_.clear();
    if (options_.dictionary) {
      std::string values;
      for (const Entry& entry : entries) {
        if (!HasText(entry) || Index(entry.value) < dictionary_.size()) continue;
        dictionary_.push_back(entry.value);
        values += U32(static_cast<uint32_t>(entry.value.size())) + entry.value;
      }
      ThriftText header;
      header.I32(1, static_cast<int64_t>(dictionary_.size())).I32(2, 0);
      Page(2, 7, header, "", values);
    }
    const auto data = static_cast<int64_t>(out_.size());
    for (size_t i = 0; i < entries.size(); i += options_.page_rows) {
      DataPage({entries.begin() + static_cast<int64_t>(i),
                entries.begin() +
                    static_cast<int64_t>(std::min(entries.size(), i + options_.page_rows))});
    }
    ThriftText meta, chunk;
    meta.I32(1, 6)
        .I32(4, options_.codec)
        .I64(5, static_cast<int64_t>(entries.size()))
        .I64(7, static_cast<int64_t>(out_.size()) - first)
        .I64(9, data);
    if (options_.dictionary) meta.I64(11, first);
    chunk.I64(2, first).Struct(3, meta);
    return chunk;
  }

  size_t Index(const std::string& value) const {
    return std::find(dictionary_.begin(), dictionary_.end(), value) - dictionary_.begin();
  }

  // Every level is a run of one.
  void DataPage(const std::vector<Entry>& entries) {
    std::string repetitions, definitions, values, indices;
    int64_t nulls = 0;
    for (const Entry& entry : entries) {
      if (IsList()) repetitions += std::string{2, static_cast<char>(entry.repetition)};
      if (Definition() > 0) definitions += std::string{2, static_cast<char>(entry.definition)};
      nulls += HasText(entry) ? 0 : 1;
      if (!HasText(entry)) continue;
      values += U32(static_cast<uint32_t>(entry.value.size())) + entry.value;
      indices += std::string{2, static_cast<char>(Index(entry.value))};
    }
    if (options_.dictionary) values = '\7' + indices;
    const int encoding = options_.dictionary ? 8 : 0;
    const int64_t count = std::ssize(entries);
    ThriftText header;
    header.I32(1, count);
    if (options_.v2) {
      header.I32(2, nulls).I32(3, count).I32(4, encoding).I32(5, std::ssize(definitions));
      header.I32(6, std::ssize(repetitions)).Bool(7, true);
      return Page(3, 8, header, repetitions + definitions, values);
    }
    header.I32(2, encoding).I32(3, 3).I32(4, 3);
    const auto sized = [](const std::string& levels, bool has) {
      return has ? U32(static_cast<uint32_t>(levels.size())) + levels : "";
    };
    Page(0, 5, header, "",
         sized(repetitions, IsList()) + sized(definitions, Definition() > 0) + values);
  }

  void Page(int type, int id, const ThriftText& inner, const std::string& bare,
            const std::string& bytes) {
    const std::string body = bare + Packed(options_.codec, bytes);
    ThriftText header;
    header.I32(1, type)
        .I32(2, static_cast<int64_t>(bare.size() + bytes.size()))
        .I32(3, static_cast<int64_t>(body.size()));
    if (options_.crc) {
      header.I32(4, static_cast<int32_t>(
                        crc32(0, reinterpret_cast<const Bytef*>(body.data()), body.size())));
    }
    out_ += header.Struct(id, inner).bytes() + body;
  }

  NestedRows rows_, twin_;
  ParquetOptions options_;
  std::string out_;
  std::vector<std::string> dictionary_;
  std::vector<ThriftText> groups_;
};

}  // namespace nsa::train
