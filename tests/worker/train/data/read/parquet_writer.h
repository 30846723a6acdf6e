// A small writer of Parquet files with one column of texts, for tests. It shares no code with the
// reader.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <optional>
#include <string>
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

struct ParquetOptions {
  std::string column = "text";
  bool optional = true;
  bool dictionary = false;
  bool v2 = false;
  bool crc = true;
  int codec = 0;           // 0 none, 1 Snappy (literals only), 2 gzip, 6 Zstandard
  size_t page_rows = 3;    // rows of a page
  size_t group_pages = 2;  // pages of a row group
};

inline std::string Packed(int codec, const std::string& bytes) {
  if (codec == 2) return Gzip(bytes);
  if (codec == 6) return Zstd(bytes);
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
  ParquetText(Rows rows, ParquetOptions options)
      : rows_(std::move(rows)), options_(std::move(options)) {}

  std::string Write() {
    out_ = "PAR1";
    for (size_t at = 0; at < rows_.size(); at += options_.page_rows * options_.group_pages) {
      Group(at, std::min(rows_.size(), at + options_.page_rows * options_.group_pages));
    }
    ThriftText column, root, other;
    root.Text(4, "schema").I32(5, 2);
    other.I32(1, 1).I32(3, 0).Text(4, "id");
    column.I32(1, 6).I32(3, options_.optional ? 1 : 0).Text(4, options_.column).I32(6, 0);
    ThriftText footer;
    footer.I32(1, 1)
        .Structs(2, {root, other, column})
        .I64(3, static_cast<int64_t>(rows_.size()))
        .Structs(4, groups_);
    const std::string bytes = footer.bytes();
    return out_ + bytes + U32(static_cast<uint32_t>(bytes.size())) + "PAR1";
  }

 private:
  void Group(size_t begin, size_t end) {
    const auto first = static_cast<int64_t>(out_.size());
    dictionary_.clear();
    if (options_.dictionary) {
      std::string values;
      for (size_t i = begin; i < end; ++i) {
        if (!rows_[i] || Index(*rows_[i]) < dictionary_.size()) continue;
        dictionary_.push_back(*rows_[i]);
        values += U32(static_cast<uint32_t>(rows_[i]->size())) + *rows_[i];
      }
      ThriftText header;
      header.I32(1, static_cast<int64_t>(dictionary_.size())).I32(2, 0);
      Page(2, 7, header, "", values);
    }
    const auto data = static_cast<int64_t>(out_.size());
    for (size_t i = begin; i < end; i += options_.page_rows) {
      DataPage(i, std::min(end, i + options_.page_rows));
    }
    ThriftText meta, chunk, other, group;
    meta.I32(1, 6)
        .I32(4, options_.codec)
        .I64(5, static_cast<int64_t>(end - begin))
        .I64(7, static_cast<int64_t>(out_.size()) - first)
        .I64(9, data);
    if (options_.dictionary) meta.I64(11, first);
    chunk.I64(2, first).Struct(3, meta);
    other.I64(2, 4);
    group.Structs(1, {other, chunk}).I64(2, 0).I64(3, static_cast<int64_t>(end - begin));
    groups_.push_back(group);
  }

  size_t Index(const std::string& value) const {
    return std::find(dictionary_.begin(), dictionary_.end(), value) - dictionary_.begin();
  }

  void DataPage(size_t begin, size_t end) {
    std::string levels, values, indices;
    int64_t nulls = 0;
    for (size_t i = begin; i < end; ++i) {
      levels += std::string{2, static_cast<char>(rows_[i] ? 1 : 0)};  // a run of one
      nulls += rows_[i] ? 0 : 1;
      if (!rows_[i]) continue;
      values += U32(static_cast<uint32_t>(rows_[i]->size())) + *rows_[i];
      indices += std::string{2, static_cast<char>(Index(*rows_[i]))};
    }
    if (!options_.optional) levels.clear();
    if (options_.dictionary) values = '\7' + indices;
    const int encoding = options_.dictionary ? 8 : 0;
    ThriftText header;
    header.I32(1, static_cast<int64_t>(end - begin));
    if (options_.v2) {
      header.I32(2, nulls).I32(3, static_cast<int64_t>(end - begin)).I32(4, encoding);
      header.I32(5, static_cast<int64_t>(levels.size())).I32(6, 0).Bool(7, true);
      return Page(3, 8, header, levels, values);
    }
    header.I32(2, encoding).I32(3, 3).I32(4, 3);
    const std::string sized =
        options_.optional ? U32(static_cast<uint32_t>(levels.size())) + levels : "";
    Page(0, 5, header, "", sized + values);
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

  const Rows rows_;
  const ParquetOptions options_;
  std::string out_;
  std::vector<std::string> dictionary_;
  std::vector<ThriftText> groups_;
};

}  // namespace nsa::train
