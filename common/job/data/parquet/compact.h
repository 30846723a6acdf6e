// Reads Thrift's compact protocol, in which Parquet writes its footer and page headers.
//
// The bytes come from a file that may be damaged or made to do harm. After the first fault every
// call returns zero, an empty list or false, so a caller reads a whole structure and asks ok()
// once. Nothing is allocated. Time is linear in the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::parquet {

class CompactReader {
 public:
  enum Type : uint8_t {
    kStop = 0,
    kTrue = 1,
    kFalse = 2,
    kByte = 3,
    kInt16 = 4,
    kInt32 = 5,
    kInt64 = 6,
    kDouble = 7,
    kBinary = 8,
    kList = 9,
    kSet = 10,
    kMap = 11,
    kStruct = 12,
    kUuid = 13,
  };

  struct Field {
    int32_t id = 0;
    uint8_t type = kStop;
  };

  explicit CompactReader(std::string_view bytes) : bytes_(bytes) {}

  // Calls on_field(field) for every field of the structure that begins here. It reads the field's
  // value and returns true, or returns false, and the value is skipped.
  template <typename OnField>
  void Struct(OnField on_field) {
    int32_t last_id = 0;
    Field field;
    while (NextField(&last_id, &field)) {
      if (!on_field(field)) Skip(field.type, 0);
    }
  }

  // Calls on_element() for every element of the list in `field`, whose elements have the type
  // `type`.
  template <typename OnElement>
  void List(const Field& field, Type type, OnElement on_element) {
    for (size_t left = BeginList(field, type); left > 0 && ok(); --left) on_element();
  }

  // The value of a field that must have the type.
  int64_t Integer(const Field& field);
  std::string_view Binary(const Field& field);
  bool Bool(const Field& field);

  bool ok() const { return fault_.empty(); }
  // Whether the fault is that the bytes end too early; more bytes may then help.
  bool truncated() const { return truncated_; }
  // What is wrong, for messages; empty without a fault.
  std::string_view fault() const { return fault_; }
  // Bytes read so far; with a fault, where it is.
  size_t position() const { return position_; }

 private:
  bool NextField(int32_t* last_id, Field* field);
  size_t BeginList(const Field& field, Type type);
  void Skip(uint8_t type, int depth);
  void SkipElements(uint8_t header, int depth);
  void SkipMap(int depth);
  uint8_t Byte();
  uint64_t Varint();
  int64_t Zigzag();
  void Advance(uint64_t count);
  void Fail(std::string_view fault);

  const std::string_view bytes_;
  size_t position_ = 0;
  std::string_view fault_;
  bool truncated_ = false;
};

}  // namespace nsa::parquet
