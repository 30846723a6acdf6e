#include "common/run/unpacked_bytes.h"

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace nsa {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// What elements take beside their contents.
constexpr int64_t kMessageBytes = 320;
constexpr int64_t kTextBytes = 64;
constexpr int64_t kUnknownBytes = 64;
constexpr int64_t kNumberBytes = 16;  // in a list that grows
// Protobuf refuses messages that are nested deeper.
constexpr int kDeepest = 100;

// Reads what follows a tag of this wire type and skips it. False at the end and where the bytes are
// no message.
bool Skip(uint32_t tag, CodedInputStream* in, uint32_t* length) {
  uint64_t number = 0;
  *length = 0;
  switch (WireFormatLite::GetTagWireType(tag)) {
    case WireFormatLite::WIRETYPE_VARINT:
      return in->ReadVarint64(&number);
    case WireFormatLite::WIRETYPE_FIXED64:
      return in->Skip(sizeof(uint64_t));
    case WireFormatLite::WIRETYPE_FIXED32:
      return in->Skip(sizeof(uint32_t));
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      return in->ReadVarint32(length) && in->Skip(static_cast<int>(*length));
    case WireFormatLite::WIRETYPE_START_GROUP:
    case WireFormatLite::WIRETYPE_END_GROUP:
      return true;  // what is in a group that is not known is counted one by one
  }
  return false;
}

enum class Kind { kUnknown, kMessage, kText, kNumbers, kNumber };

// What the parser makes of a field with this tag. One of another wire type than it has is unknown.
Kind KindOf(const FieldDescriptor* field, uint32_t tag) {
  if (field == nullptr) return Kind::kUnknown;
  const auto wire_type = WireFormatLite::GetTagWireType(tag);
  const auto own =
      WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field->type()));
  const bool delimited = wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  if (delimited && field->is_packable()) return Kind::kNumbers;
  if (wire_type != own) return Kind::kUnknown;
  if (!delimited) return Kind::kNumber;
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ? Kind::kMessage : Kind::kText;
}

class Counter {
 public:
  explicit Counter(size_t bytes)
      : left_(kElementsOfAnyMessage + static_cast<int64_t>(bytes) / kBytesOfAnElement),
        cost_(static_cast<int64_t>(bytes)) {}

  int64_t cost() const { return cost_; }

  // False when there are too many elements.
  bool Count(const Descriptor& type, int depth, CodedInputStream* in) {
    while (const uint32_t tag = in->ReadTag()) {
      const FieldDescriptor* const field =
          type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      const Kind kind = KindOf(field, tag);
      if (kind != Kind::kNumber && kind != Kind::kNumbers && --left_ < 0) return false;
      uint32_t length = 0;
      if (kind != Kind::kMessage) {
        if (!Skip(tag, in, &length)) return true;
        cost_ += CostOf(kind, length);
        continue;
      }
      cost_ += kMessageBytes;
      if (depth == kDeepest || !in->ReadVarint32(&length)) return true;
      const CodedInputStream::Limit limit = in->PushLimit(static_cast<int>(length));
      if (!Count(*field->message_type(), depth + 1, in)) return false;
      if (in->BytesUntilLimit() > 0) return true;
      in->PopLimit(limit);
    }
    return true;
  }

 private:
  static int64_t CostOf(Kind kind, uint32_t length) {
    if (kind == Kind::kUnknown) return kUnknownBytes;
    if (kind == Kind::kText) return kTextBytes;
    return kind == Kind::kNumber ? kNumberBytes : kNumberBytes * int64_t{length};
  }

  int64_t left_;
  int64_t cost_;
};

}  // namespace

std::optional<int64_t> UnpackedBytes(const Descriptor& type, std::string_view bytes) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  Counter counter(bytes.size());
  if (!counter.Count(type, 0, &in)) return std::nullopt;
  return counter.cost();
}

}  // namespace nsa
