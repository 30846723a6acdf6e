#include "worker/train/data/read/parquet/column_reader.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/little_endian.h"
#include "common/base/status.h"
#include "common/job/data_source.h"

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

// Takes levels from the front of a page of version 1: their length in four bytes, and they.
absl::StatusOr<std::string_view> TakeLevels(std::string_view kind, int64_t encoding,
                                            std::string_view* bytes) {
  if (encoding != kRle) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s levels of encoding %d (RLE, 3); write the file again with a newer program", kind,
        encoding));
  }
  if (bytes->size() < 4 || LittleEndian<uint32_t>(*bytes) > bytes->size() - 4) {
    return absl::DataLossError(absl::StrFormat("%s levels that are longer than the page", kind));
  }
  const size_t size = LittleEndian<uint32_t>(*bytes);
  const std::string_view levels = bytes->substr(4, size);
  bytes->remove_prefix(4 + size);
  return levels;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ColumnReader>> ColumnReader::Open(const std::filesystem::path& path,
                                                                 std::string_view column,
                                                                 ReadProgress* progress,
                                                                 std::string_view field,
                                                                 std::string_view key) {
  NSA_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, progress));
  NSA_ASSIGN_OR_RETURN(ColumnLayout layout, ReadLayout(file, column, field, key));
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
  if (layout_.repetition > 0) return NextList(text);
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

// Passes one value of the open page, or up to `most` nulls that follow each other. How many nulls
// it passed; with 0 the next of values_ is the value.
absl::StatusOr<int64_t> ColumnReader::PassNulls(int64_t most) {
  int64_t nulls = 0;
  if (definitions_) {
    NSA_ASSIGN_OR_RETURN(const HybridReader::Run level, definitions_->Peek());
    const auto text = static_cast<uint32_t>(layout_.definition);
    if (level.value > text) {
      return absl::DataLossError(absl::StrFormat("a definition level above %d", text));
    }
    nulls = level.value < text ? std::min(level.count, most) : 0;
    definitions_->Advance(std::max<int64_t>(nulls, 1));
  }
  page_values_ -= std::max<int64_t>(nulls, 1);
  return nulls;
}

// False when no row of the open page is left.
absl::StatusOr<bool> ColumnReader::NextOfPage(std::string_view* text) {
  while (page_values_ > 0) {
    const absl::StatusOr<int64_t> nulls = PassNulls(page_values_);
    if (!nulls.ok()) return AtPage(nulls.status());
    row_ += std::max<int64_t>(*nulls, 1);
    nulls_ += *nulls;
    if (*nulls > 0) continue;
    const absl::StatusOr<std::string_view> value = values_->Next();
    if (!value.ok()) return AtPage(value.status());
    *text = *value;
    return true;
  }
  return false;
}

absl::StatusOr<bool> ColumnReader::NextList(std::string_view* text) {
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, ReadList());
    if (!found) return false;
    if (list_) {
      *text = *list_;
      return true;
    }
    ++nulls_;
  }
}

absl::StatusOr<bool> ColumnReader::NextElements(std::vector<std::string>* texts) {
  texts->clear();
  elements_ = texts;
  return ReadList();
}

// Reads the texts of the next row into list_, or elements_; false at the end of the column. A row
// may go on in the next page, but not in the next row group.
absl::StatusOr<bool> ColumnReader::ReadList() {
  list_.reset();
  list_bytes_ = 0;
  for (bool begun = false;; begun = true) {
    while (page_values_ == 0) {
      if (begun && values_left_ == 0) return true;
      NSA_ASSIGN_OR_RETURN(const bool more, NextPage());
      if (!more) return false;
    }
    const absl::StatusOr<bool> begins = BeginsRow(!begun);
    if (!begins.ok()) return AtPage(begins.status());
    if (begun && *begins) return true;
    NSA_RETURN_IF_ERROR(AtPage(ReadElement()));
  }
}

// Whether the next value begins a row. If it must, the row is counted.
absl::StatusOr<bool> ColumnReader::BeginsRow(bool must) {
  NSA_ASSIGN_OR_RETURN(const HybridReader::Run level, repetitions_->Peek());
  if (level.value > 1) return absl::DataLossError("a repetition level above 1");
  if (!must) return level.value == 0;
  if (level.value != 0) return absl::DataLossError("a row that does not begin");
  if (rows_left_ == 0) return absl::DataLossError("more rows than the row group has");
  --rows_left_;
  ++row_;
  return true;
}

absl::Status ColumnReader::ReadElement() {
  repetitions_->Advance(1);
  NSA_ASSIGN_OR_RETURN(const int64_t nulls, PassNulls(1));
  std::string_view value;
  if (nulls == 0) {
    NSA_ASSIGN_OR_RETURN(value, values_->Next());
  }
  // In memory a text of its own takes more than its bytes, also where it is null.
  const int64_t beside = elements_ != nullptr ? int64_t{sizeof(std::string)} : nulls == 0 ? 1 : 0;
  list_bytes_ += std::ssize(value) + beside;
  if (list_bytes_ > kLargestPage) {
    return absl::InvalidArgumentError(
        absl::StrFormat("row %d: a list of more than 1 GiB of text; divide it", row_));
  }
  if (nulls > 0) {
    if (elements_ != nullptr) elements_->emplace_back();
    return absl::OkStatus();
  }
  if (elements_ != nullptr) {
    elements_->emplace_back(value);
    return absl::OkStatus();
  }
  if (list_) {
    list_->push_back(kBetweenElements);
  } else {
    list_.emplace();
  }
  list_->append(value);
  return absl::OkStatus();
}

// Opens the next page, of this chunk or of the next one; false at the end of the column.
absl::StatusOr<bool> ColumnReader::NextPage() {
  if (in_chunk_ && values_left_ == 0) {
    if (layout_.repetition > 0 && rows_left_ > 0) {
      return AtPage(absl::DataLossError(absl::StrFormat(
          "%d rows are missing when the column's values end in this row group", rows_left_)));
    }
    in_chunk_ = false;
    ++chunk_;
  }
  if (chunk_ == layout_.chunks.size()) return false;
  if (!in_chunk_) {
    const ColumnChunk& chunk = layout_.chunks[chunk_];
    in_chunk_ = true;
    dictionary_.reset();
    values_left_ = chunk.values;
    rows_left_ = chunk.rows;
    next_page_ = chunk.begin;
    file_.ExpectUpTo(chunk.end);
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
          "%d values are missing when the column's bytes end in this row group", values_left_));
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
  std::string_view bytes = plain_.view(), repetitions, definitions;
  if (layout_.repetition > 0) {
    NSA_ASSIGN_OR_RETURN(repetitions, TakeLevels("repetition", header.repetition_encoding, &bytes));
  }
  if (layout_.definition > 0) {
    NSA_ASSIGN_OR_RETURN(definitions, TakeLevels("definition", header.level_encoding, &bytes));
  }
  return OpenValues(header, repetitions, definitions, bytes);
}

// The header's sizes were checked: the levels lie in the page.
absl::Status ColumnReader::OpenDataV2(const PageHeader& header) {
  const std::string_view body = body_.view();
  const auto repetitions_end = static_cast<size_t>(header.repetition_bytes);
  const auto levels_end = static_cast<size_t>(header.repetition_bytes + header.definition_bytes);
  const size_t size = static_cast<size_t>(header.plain_size) - levels_end;
  const int64_t codec = header.compressed ? layout_.chunks[chunk_].codec : int64_t{kUncompressed};
  // A page of nulls only may have no compressed bytes at all.
  const std::string_view rest = body.substr(levels_end);
  const bool none = size == 0 && rest.empty();
  NSA_RETURN_IF_ERROR(Decompress(none ? int64_t{kUncompressed} : codec, rest, size, &plain_));
  return OpenValues(header, body.substr(0, repetitions_end),
                    body.substr(repetitions_end, levels_end - repetitions_end), plain_.view());
}

absl::Status ColumnReader::OpenValues(const PageHeader& header, std::string_view repetitions,
                                      std::string_view definitions, std::string_view values) {
  if (header.values > values_left_) {
    return absl::DataLossError(absl::StrFormat("a page of %d values (the row group has %d left)",
                                               header.values, values_left_));
  }
  const auto width = [](int largest) { return std::bit_width(static_cast<unsigned>(largest)); };
  repetitions_.reset();
  definitions_.reset();
  if (layout_.repetition > 0) repetitions_.emplace(repetitions, width(layout_.repetition));
  if (layout_.definition > 0) definitions_.emplace(definitions, width(layout_.definition));
  NSA_ASSIGN_OR_RETURN(values_, ValueReader::Make(header.encoding, values, header.values,
                                                  dictionary_ ? &*dictionary_ : nullptr));
  page_values_ = header.values;
  values_left_ -= header.values;
  return absl::OkStatus();
}

}  // namespace nsa::train::parquet
