#include "common/job/data/parquet/compact.h"

namespace nsa::parquet {
namespace {

constexpr int kDeepest = 32;  // structures within structures that are skipped

bool IsInteger(uint8_t type) {
  return type == CompactReader::kByte || type == CompactReader::kInt16 ||
         type == CompactReader::kInt32 || type == CompactReader::kInt64;
}

}  // namespace

void CompactReader::Fail(std::string_view fault) {
  if (ok()) fault_ = fault;
}

uint8_t CompactReader::Byte() {
  if (!ok()) return 0;
  if (position_ == bytes_.size()) {
    truncated_ = true;
    Fail("ends too early");
    return 0;
  }
  return static_cast<uint8_t>(bytes_[position_++]);
}

void CompactReader::Advance(uint64_t count) {
  if (!ok()) return;
  if (count > bytes_.size() - position_) {
    truncated_ = true;
    return Fail("ends too early");
  }
  position_ += count;
}

uint64_t CompactReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = Byte();
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  Fail("a number of more than 64 bits");
  return 0;
}

int64_t CompactReader::Zigzag() {
  const uint64_t value = Varint();
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

bool CompactReader::NextField(int32_t* last_id, Field* field) {
  const uint8_t byte = Byte();
  field->type = byte & 0x0f;
  if (!ok() || field->type == kStop) return false;
  const int64_t id = byte >> 4 != 0 ? *last_id + (byte >> 4) : Zigzag();
  if (field->type > kUuid || id < 0 || id > INT16_MAX) Fail("a field that cannot be");
  field->id = *last_id = static_cast<int32_t>(id);
  return ok();
}

size_t CompactReader::BeginList(const Field& field, Type type) {
  if (field.type != kList) Fail("a value that is not a list");
  const uint8_t header = Byte();
  const uint64_t count = header >> 4 == 15 ? Varint() : header >> 4;
  if (!ok()) return 0;
  if (count > 0 && (header & 0x0f) != type) Fail("a list of other values");
  if (count > bytes_.size() - position_) {  // every element takes a byte or more
    truncated_ = true;
    Fail("a list that is longer than the rest");
  }
  return ok() ? count : 0;
}

int64_t CompactReader::Integer(const Field& field) {
  if (!IsInteger(field.type)) {
    Fail("a value that is not a number");
    return 0;
  }
  return field.type == kByte ? static_cast<int8_t>(Byte()) : Zigzag();
}

std::string_view CompactReader::Binary(const Field& field) {
  if (field.type != kBinary) Fail("a value that is not a text");
  const uint64_t size = Varint();
  const size_t begin = position_;
  Advance(size);
  return ok() ? bytes_.substr(begin, size) : std::string_view();
}

bool CompactReader::Bool(const Field& field) {
  if (field.type != kTrue && field.type != kFalse) Fail("a value that is not true or false");
  return field.type == kTrue;
}

void CompactReader::SkipElements(uint8_t header, int depth) {
  const uint8_t type = header & 0x0f;
  const uint64_t count = header >> 4 == 15 ? Varint() : header >> 4;
  for (uint64_t i = 0; i < count && ok(); ++i) {
    if (type == kTrue || type == kFalse) {
      Byte();  // within a list such a value has a byte of its own
    } else {
      Skip(type, depth + 1);
    }
  }
}

void CompactReader::SkipMap(int depth) {
  const uint64_t count = Varint();
  const uint8_t types = count == 0 ? 0 : Byte();
  for (uint64_t i = 0; i < count && ok(); ++i) {
    for (const uint8_t type : {types >> 4, types & 0x0f}) {
      if (type == kTrue || type == kFalse) {
        Byte();
      } else {
        Skip(type, depth + 1);
      }
    }
  }
}

void CompactReader::Skip(uint8_t type, int depth) {
  if (depth > kDeepest) return Fail("more than 32 structures within each other");
  int32_t last_id = 0;
  Field field;
  switch (type) {
    case kTrue:
    case kFalse:
      return;
    case kByte:
      return Advance(1);
    case kInt16:
    case kInt32:
    case kInt64:
      Varint();
      return;
    case kDouble:
      return Advance(8);
    case kBinary:
      return Advance(Varint());
    case kList:
    case kSet:
      return SkipElements(Byte(), depth);
    case kMap:
      return SkipMap(depth);
    case kStruct:
      while (NextField(&last_id, &field)) Skip(field.type, depth + 1);
      return;
    case kUuid:
      return Advance(16);
    default:
      return Fail("a type that cannot be");
  }
}

}  // namespace nsa::parquet
