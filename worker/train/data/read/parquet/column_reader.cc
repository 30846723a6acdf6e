#include "worker/train/data/read/parquet/column_reader.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/little_endian.h"
#include "common/base/status.h"

namespace nsa::train::parquet {
namespace {

constexpr int64_t kHeaderBytes = 4 << 10;
constexpr int64_t kLongestHeader = 16 << 20;  // statistics may hold whole texts

absl::Status CheckCrc(const PageHeader& header, std::string_view body) {
  if (!header.crc) return absl::OkStatus();
  const auto crc =
      static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size()));
  if (crc == *header.crc) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("a checksum of %08x, its header says %08x", crc, *header.crc));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ColumnReader>> ColumnReader::Open(const std::filesystem::path& path,
                                                                 std::string_view column,
                                                                 ReadProgress* progress) {
  NSA_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, progress));
  NSA_ASSIGN_OR_RETURN(ColumnLayout layout, ReadLayout(file, column));
  return std::unique_ptr<ColumnReader>(
      new ColumnReader(std::move(file), std::move(layout), std::string(column)));
}

absl::Status ColumnReader::AtPage(const absl::Status& status) const {
  if (status.ok() || absl::IsCancelled(status)) return status;
  const std::string place =
      absl::StrFormat("%s: byte %d: page of column '%s'", file_.name(), page_, column_);
  if (!absl::IsDataLoss(status)) return Annotate(status, place);
  return absl::DataLossError(
      absl::StrFormat("%s: %s; the file is damaged or was cut off, copy it again", place,
                      std::string(status.message())));
}

absl::StatusOr<bool> ColumnReader::Next(std::string_view* text) {
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, NextOfPage(text));
    if (found) return true;
    NSA_ASSIGN_OR_RETURN(const bool more, NextPage());
    if (!more) return false;
  }
}

void ColumnReader::SkipGroups(int64_t row) {
  while (chunk_ < layout_.chunks.size() && row_ + layout_.chunks[chunk_].rows <= row) {
    row_ += layout_.chunks[chunk_++].rows;
  }
}

// False when no row of the open page is left.
absl::StatusOr<bool> ColumnReader::NextOfPage(std::string_view* text) {
  while (page_rows_ > 0) {
    int64_t nulls = 0;
    if (levels_) {
      const absl::StatusOr<HybridReader::Run> level = levels_->Peek();
      if (!level.ok()) return AtPage(level.status());
      if (level->value > 1) return AtPage(absl::DataLossError("a definition level above 1"));
      nulls = level->value == 0 ? std::min(level->count, page_rows_) : 0;
      levels_->Advance(std::max<int64_t>(nulls, 1));
    }
    const int64_t passed = std::max<int64_t>(nulls, 1);
    page_rows_ -= passed;
    row_ += passed;
    nulls_ += nulls;
    if (nulls > 0) continue;
    const absl::StatusOr<std::string_view> value = values_->Next();
    if (!value.ok()) return AtPage(value.status());
    *text = *value;
    return true;
  }
  return false;
}

// Opens the next page, of this chunk or of the next one; false at the end of the column.
absl::StatusOr<bool> ColumnReader::NextPage() {
  if (in_chunk_ && rows_left_ == 0) {
    in_chunk_ = false;
    ++chunk_;
  }
  if (chunk_ == layout_.chunks.size()) return false;
  if (!in_chunk_) {
    in_chunk_ = true;
    dictionary_.reset();
    rows_left_ = layout_.chunks[chunk_].rows;
    next_page_ = layout_.chunks[chunk_].begin;
    file_.ExpectUpTo(layout_.chunks[chunk_].end);
  }
  page_ = next_page_;
  NSA_RETURN_IF_ERROR(AtPage(ReadPage()));
  return true;
}

absl::Status ColumnReader::ReadPage() {
  NSA_ASSIGN_OR_RETURN(const PageHeader header, ReadHeader());
  NSA_RETURN_IF_ERROR(ReadBody(header));
  switch (header.type) {
    case kDataPage:
      return OpenData(header);
    case kDataPageV2:
      return OpenDataV2(header);
    case kDictionaryPage:
      return OpenDictionary(header);
    default:
      return absl::OkStatus();
  }
}

// Most headers have some dozen bytes, so few are read, and more if the header has no end there.
absl::StatusOr<PageHeader> ColumnReader::ReadHeader() {
  const int64_t left = layout_.chunks[chunk_].end - page_;
  for (int64_t size = kHeaderBytes;; size *= 8) {
    header_.resize(static_cast<size_t>(std::min(size, left)));
    NSA_RETURN_IF_ERROR(file_.ReadAt(page_, header_));
    absl::StatusOr<PageHeader> header = ReadPageHeader(header_);
    if (!absl::IsOutOfRange(header.status())) return header;
    if (size >= left) {
      return absl::DataLossError(absl::StrFormat(
          "%d rows are missing when the column's bytes end in this row group", rows_left_));
    }
    if (size >= kLongestHeader) return absl::DataLossError("a header of more than 16 MiB");
  }
}

absl::Status ColumnReader::ReadBody(const PageHeader& header) {
  const int64_t begin = page_ + static_cast<int64_t>(header.header_bytes);
  if (header.size > layout_.chunks[chunk_].end - begin) {
    return absl::DataLossError(absl::StrFormat("a page of %d bytes (the row group has %d left)",
                                               header.size, layout_.chunks[chunk_].end - begin));
  }
  next_page_ = begin + header.size;
  char* const to = body_.Resize(static_cast<size_t>(header.size));
  NSA_RETURN_IF_ERROR(file_.ReadAt(begin, {to, static_cast<size_t>(header.size)}));
  return CheckCrc(header, body_.view());
}

absl::Status ColumnReader::OpenDictionary(const PageHeader& header) {
  if (dictionary_) return absl::DataLossError("a second dictionary in a row group");
  if (header.encoding != kPlain && header.encoding != kPlainDictionary) {
    return absl::DataLossError(absl::StrFormat("a dictionary of encoding %d", header.encoding));
  }
  NSA_RETURN_IF_ERROR(Decompress(layout_.chunks[chunk_].codec, body_.view(),
                                 static_cast<size_t>(header.plain_size), &dictionary_page_));
  NSA_ASSIGN_OR_RETURN(dictionary_, Dictionary::Read(dictionary_page_.view(), header.values));
  return absl::OkStatus();
}

absl::Status ColumnReader::OpenData(const PageHeader& header) {
  NSA_RETURN_IF_ERROR(Decompress(layout_.chunks[chunk_].codec, body_.view(),
                                 static_cast<size_t>(header.plain_size), &plain_));
  std::string_view bytes = plain_.view();
  if (!layout_.optional) return OpenValues(header, "", bytes);
  if (header.level_encoding != kRle) {
    return absl::InvalidArgumentError(
        absl::StrFormat("definition levels of encoding %d (RLE, 3); write the file again with a "
                        "newer program",
                        header.level_encoding));
  }
  if (bytes.size() < 4 || LittleEndian<uint32_t>(bytes) > bytes.size() - 4) {
    return absl::DataLossError("definition levels that are longer than the page");
  }
  const size_t levels = LittleEndian<uint32_t>(bytes);
  return OpenValues(header, bytes.substr(4, levels), bytes.substr(4 + levels));
}

// The header's sizes were checked: the levels lie in the page.
absl::Status ColumnReader::OpenDataV2(const PageHeader& header) {
  const std::string_view body = body_.view();
  const auto levels_end = static_cast<size_t>(header.repetition_bytes + header.definition_bytes);
  const std::string_view levels = body.substr(static_cast<size_t>(header.repetition_bytes),
                                              static_cast<size_t>(header.definition_bytes));
  const size_t size = static_cast<size_t>(header.plain_size) - levels_end;
  const int64_t codec = header.compressed ? layout_.chunks[chunk_].codec : int64_t{kUncompressed};
  // A page of nulls only may have no compressed bytes at all.
  const std::string_view rest = body.substr(levels_end);
  const bool none = size == 0 && rest.empty();
  NSA_RETURN_IF_ERROR(Decompress(none ? int64_t{kUncompressed} : codec, rest, size, &plain_));
  return OpenValues(header, levels, plain_.view());
}

absl::Status ColumnReader::OpenValues(const PageHeader& header, std::string_view levels,
                                      std::string_view values) {
  if (header.values > rows_left_) {
    return absl::DataLossError(absl::StrFormat("a page of %d rows (the row group has %d left)",
                                               header.values, rows_left_));
  }
  levels_.reset();
  if (layout_.optional) levels_.emplace(levels, 1);
  NSA_ASSIGN_OR_RETURN(values_, ValueReader::Make(header.encoding, values, header.values,
                                                  dictionary_ ? &*dictionary_ : nullptr));
  page_rows_ = header.values;
  rows_left_ -= header.values;
  return absl::OkStatus();
}

}  // namespace nsa::train::parquet
