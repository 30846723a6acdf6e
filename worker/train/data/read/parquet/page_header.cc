#include "worker/train/data/read/parquet/page_header.h"

#include <string>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/parquet/compact.h"

namespace nsa::train::parquet {
namespace {

using nsa::parquet::CompactReader;
using Field = CompactReader::Field;

void ReadDataPage(CompactReader* reader, PageHeader* header) {
  reader->Struct([&](const Field& field) {
    if (field.id < 1 || field.id > 4) return false;
    const int64_t value = reader->Integer(field);
    if (field.id == 1) header->values = value;
    if (field.id == 2) header->encoding = value;
    if (field.id == 3) header->level_encoding = value;
    if (field.id == 4) header->repetition_encoding = value;
    return true;
  });
}

void ReadDictionaryPage(CompactReader* reader, PageHeader* header) {
  reader->Struct([&](const Field& field) {
    if (field.id != 1 && field.id != 2) return false;
    (field.id == 1 ? header->values : header->encoding) = reader->Integer(field);
    return true;
  });
}

void ReadDataPageV2(CompactReader* reader, PageHeader* header) {
  reader->Struct([&](const Field& field) {
    if (field.id == 1) header->values = reader->Integer(field);
    if (field.id == 4) header->encoding = reader->Integer(field);
    if (field.id == 5) header->definition_bytes = reader->Integer(field);
    if (field.id == 6) header->repetition_bytes = reader->Integer(field);
    if (field.id == 7) header->compressed = reader->Bool(field);
    return field.id == 1 || (field.id >= 4 && field.id <= 7);
  });
}

// Reads a field that is a structure; false for every other field.
bool ReadInner(CompactReader* reader, const Field& field, PageHeader* header) {
  if (field.type != CompactReader::kStruct) return false;
  if (field.id == 5) ReadDataPage(reader, header);
  if (field.id == 7) ReadDictionaryPage(reader, header);
  if (field.id == 8) ReadDataPageV2(reader, header);
  return field.id == 5 || field.id == 7 || field.id == 8;
}

absl::Status Check(const PageHeader& header) {
  const auto size = [](int64_t bytes) { return bytes >= 0 && bytes <= kLargestPage; };
  if (!size(header.size) || !size(header.plain_size)) {
    return absl::DataLossError(absl::StrFormat("a page of %d bytes, %d after decompression (1 GiB)",
                                               header.size, header.plain_size));
  }
  if (header.type == kIndexPage) return absl::OkStatus();
  if (header.type < kDataPage || header.type > kDataPageV2) {
    return absl::DataLossError(absl::StrFormat("a page of type %d", header.type));
  }
  if (header.values < 0 || header.values > INT32_MAX) {
    return absl::DataLossError(absl::StrFormat("a page of %d values", header.values));
  }
  const int64_t levels = header.repetition_bytes + header.definition_bytes;
  if (!size(header.repetition_bytes) || !size(header.definition_bytes) || levels > header.size ||
      levels > header.plain_size) {
    return absl::DataLossError(absl::StrFormat("%d and %d bytes of levels in a page of %d",
                                               header.repetition_bytes, header.definition_bytes,
                                               header.size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PageHeader> ReadPageHeader(std::string_view bytes) {
  PageHeader header;
  CompactReader reader(bytes);
  reader.Struct([&](const Field& field) {
    if (field.id < 1 || field.id > 4) return ReadInner(&reader, field, &header);
    const int64_t value = reader.Integer(field);
    if (field.id == 1) header.type = value;
    if (field.id == 2) header.plain_size = value;
    if (field.id == 3) header.size = value;
    if (field.id == 4) header.crc = static_cast<uint32_t>(value);
    return true;
  });
  header.header_bytes = reader.position();
  if (reader.truncated()) return absl::OutOfRangeError("a page header has no end");
  if (!reader.ok()) {
    return absl::DataLossError(absl::StrCat("page header: ", std::string(reader.fault())));
  }
  NSA_RETURN_IF_ERROR(Check(header));
  return header;
}

}  // namespace nsa::train::parquet
