#include "worker/train/data/read/parquet/metadata.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/little_endian.h"
#include "common/base/status.h"
#include "common/job/data/file_kind.h"
#include "common/job/data/parquet/compact.h"
#include "common/job/data/parquet/schema.h"
#include "worker/train/data/read/parquet/codec.h"

namespace nsa::train::parquet {
namespace {

using nsa::parquet::CompactReader;
using nsa::parquet::FindFieldOfList;
using nsa::parquet::FindTextColumn;
using nsa::parquet::TextColumn;
using Field = CompactReader::Field;

constexpr std::string_view kMagic = "PAR1";
constexpr int64_t kTail = 8;  // length of the footer, and the magic
constexpr int64_t kLargestFooter = 64 << 20;
constexpr std::string_view kCopyAgain = "; the file is damaged or was cut off, copy it again";

absl::Status Damaged(const DataFile& file, int64_t byte, std::string_view what) {
  return absl::DataLossError(
      absl::StrFormat("%s: byte %d: %s%s", file.name(), byte, what, kCopyAgain));
}

absl::Status Refused(const DataFile& file, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", file.name(), what));
}

// The footer's bytes; sets `begin` to where it is in the file.
absl::StatusOr<std::string> ReadFooter(const DataFile& file, int64_t* begin) {
  if (file.size() < kTail + 4) return Refused(file, "is no Parquet file: it has not 12 bytes");
  NSA_ASSIGN_OR_RETURN(const std::string head, file.Head(kFileHeadBytes));
  std::string tail(kTail, '\0');
  NSA_RETURN_IF_ERROR(file.ReadAt(file.size() - kTail, tail));
  if (tail.ends_with("PARE")) {
    return Refused(file, "is encrypted; decrypt it before it is used for training");
  }
  if (!head.starts_with(kMagic)) {
    NSA_RETURN_IF_ERROR(CheckIsNoStranger(file.name(), head));
    return Refused(file,
                   "is no Parquet file: it does not begin with PAR1; set data.source to what "
                   "it holds");
  }
  if (!tail.ends_with(kMagic)) return Damaged(file, file.size() - 4, "does not end with PAR1");
  const int64_t size = LittleEndian<uint32_t>(tail);
  if (size > kLargestFooter || size > file.size() - kTail - 4) {
    return Damaged(
        file, file.size() - kTail,
        absl::StrFormat("a footer of %d bytes (64 MiB, and the file has %d)", size, file.size()));
  }
  *begin = file.size() - kTail - size;
  std::string footer(static_cast<size_t>(size), '\0');
  NSA_RETURN_IF_ERROR(file.ReadAt(*begin, footer));
  return footer;
}

// A column of a row group as its metadata say.
struct ChunkFields {
  bool elsewhere = false;  // in another file
  bool encrypted = false;
  int64_t codec = 0;
  int64_t values = 0;
  int64_t size = -1;
  int64_t data = -1;
  int64_t dictionary = 0;
};

void ReadColumnMetadata(CompactReader* reader, ChunkFields* chunk) {
  reader->Struct([&](const Field& field) {
    switch (field.id) {
      case 4:
        chunk->codec = reader->Integer(field);
        return true;
      case 5:
        chunk->values = reader->Integer(field);
        return true;
      case 7:
        chunk->size = reader->Integer(field);
        return true;
      case 9:
        chunk->data = reader->Integer(field);
        return true;
      case 11:
        chunk->dictionary = reader->Integer(field);
        return true;
      default:
        return false;
    }
  });
}

ChunkFields ReadChunk(CompactReader* reader) {
  ChunkFields chunk;
  reader->Struct([&](const Field& field) {
    chunk.elsewhere = chunk.elsewhere || field.id == 1;
    chunk.encrypted = chunk.encrypted || field.id == 8;
    if (field.id != 3 || field.type != CompactReader::kStruct) return false;
    ReadColumnMetadata(reader, &chunk);
    return true;
  });
  return chunk;
}

// Reads the row groups of a footer, and keeps one column of each.
class RowGroups {
 public:
  RowGroups(const DataFile& file, int64_t footer_begin, const TextColumn& column)
      : file_(file), footer_begin_(footer_begin), column_(column) {}

  void Read(CompactReader* reader) {
    ChunkFields chunk;
    int64_t rows = -1;
    size_t columns = 0;
    reader->Struct([&](const Field& field) {
      if (field.id == 1) {
        reader->List(field, CompactReader::kStruct, [&] {
          ChunkFields one = ReadChunk(reader);
          if (columns++ == column_.leaf) chunk = one;
        });
      } else if (field.id == 3) {
        rows = reader->Integer(field);
      }
      return field.id == 1 || field.id == 3;
    });
    if (status_.ok() && reader->ok()) status_ = Add(chunk, rows, columns, reader->position());
  }

  const absl::Status& status() const { return status_; }
  std::vector<ColumnChunk> Take() { return std::move(chunks_); }

 private:
  absl::Status Add(const ChunkFields& chunk, int64_t rows, size_t columns, size_t position) {
    const int64_t byte = footer_begin_ + static_cast<int64_t>(position);
    const std::string group = absl::StrFormat("row group %d", chunks_.size());
    if (columns != column_.leaves) {
      return Damaged(
          file_, byte,
          absl::StrFormat("%s has %d columns, the schema %d", group, columns, column_.leaves));
    }
    if (rows == 0 && chunk.values == 0)
      return absl::OkStatus();  // its other fields may be anything
    if (chunk.elsewhere) return Refused(file_, "keeps its columns in other files; write it again");
    if (chunk.encrypted) return Refused(file_, "is encrypted; decrypt it before it is used");
    NSA_RETURN_IF_ERROR(Annotate(CheckCodec(chunk.codec), file_.name()));
    const bool indexed = chunk.dictionary > 0 && chunk.dictionary < chunk.data;
    const int64_t begin = indexed ? chunk.dictionary : chunk.data;
    const bool each = column_.repetition > 0 ? chunk.values >= rows : chunk.values == rows;
    if (rows <= 0 || !each || begin < 4 || begin > footer_begin_ || chunk.size < 0 ||
        chunk.size > footer_begin_ - begin) {
      return Damaged(file_, byte,
                     absl::StrFormat("%s: %d rows, %d values in %d bytes from byte %d on", group,
                                     rows, chunk.values, chunk.size, begin));
    }
    chunks_.push_back({rows, chunk.values, begin, begin + chunk.size, chunk.codec});
    return absl::OkStatus();
  }

  const DataFile& file_;
  const int64_t footer_begin_;
  const TextColumn column_;
  std::vector<ColumnChunk> chunks_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<ColumnLayout> ReadLayout(const DataFile& file, std::string_view column,
                                        std::string_view field, std::string_view key) {
  int64_t begin = 0;
  NSA_ASSIGN_OR_RETURN(const std::string footer, ReadFooter(file, &begin));
  const absl::StatusOr<TextColumn> text =
      field.empty() ? FindTextColumn(footer, column, key) : FindFieldOfList(footer, column, field);
  if (absl::IsDataLoss(text.status())) {
    return Damaged(file, begin, absl::StrCat("footer: ", text.status().message()));
  }
  NSA_RETURN_IF_ERROR(Annotate(text.status(), file.name()));
  RowGroups groups(file, begin, *text);
  bool encrypted = false;
  CompactReader reader(footer);
  reader.Struct([&](const Field& part) {
    encrypted = encrypted || part.id == 8;
    if (part.id != 4) return false;
    reader.List(part, CompactReader::kStruct, [&] {
      if (groups.status().ok()) groups.Read(&reader);
    });
    return true;
  });
  if (encrypted) return Refused(file, "is encrypted; decrypt it before it is used for training");
  NSA_RETURN_IF_ERROR(groups.status());
  if (!reader.ok()) {
    return Damaged(file, begin + static_cast<int64_t>(reader.position()),
                   absl::StrCat("footer: ", std::string(reader.fault())));
  }
  return ColumnLayout{text->definition, text->repetition, groups.Take()};
}

}  // namespace nsa::train::parquet
