#include "server/rpc/message_limit.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace nsa::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int64_t kElementsOfAnyMessage = 10'000;
constexpr int64_t kBytesOfAnElement = 8;
constexpr size_t kSmallMessage = 64 << 10;
// Protobuf refuses messages that are nested deeper.
constexpr int kDeepest = 100;

// Reads what follows a tag of this wire type and skips it. False at the end and where the bytes are
// no message.
bool Skip(uint32_t tag, CodedInputStream* in) {
  uint64_t number = 0;
  uint32_t length = 0;
  switch (WireFormatLite::GetTagWireType(tag)) {
    case WireFormatLite::WIRETYPE_VARINT:
      return in->ReadVarint64(&number);
    case WireFormatLite::WIRETYPE_FIXED64:
      return in->Skip(sizeof(uint64_t));
    case WireFormatLite::WIRETYPE_FIXED32:
      return in->Skip(sizeof(uint32_t));
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      return in->ReadVarint32(&length) && in->Skip(static_cast<int>(length));
    case WireFormatLite::WIRETYPE_START_GROUP:
    case WireFormatLite::WIRETYPE_END_GROUP:
      return true;  // what is in a group that is not known is counted one by one
  }
  return false;
}

// False when more than `left` elements follow.
bool Count(const Descriptor& type, int depth, CodedInputStream* in, int64_t* left) {
  while (const uint32_t tag = in->ReadTag()) {
    const FieldDescriptor* const field =
        type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool delimited =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if ((field == nullptr || delimited) && --*left < 0) return false;
    const bool message =
        field != nullptr && delimited && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!message) {
      if (!Skip(tag, in)) return true;
      continue;
    }
    uint32_t length = 0;
    if (depth == kDeepest || !in->ReadVarint32(&length)) return true;
    const CodedInputStream::Limit limit = in->PushLimit(static_cast<int>(length));
    if (!Count(*field->message_type(), depth + 1, in, left)) return false;
    if (in->BytesUntilLimit() > 0) return true;
    in->PopLimit(limit);
  }
  return true;
}

}  // namespace

bool Fits(const Descriptor& type, std::string_view bytes) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  int64_t left = kElementsOfAnyMessage + static_cast<int64_t>(bytes.size()) / kBytesOfAnElement;
  return Count(type, 0, &in, &left);
}

bool Fits(const Descriptor& type, grpc_byte_buffer* request) {
  if (grpc_byte_buffer_length(request) <= kSmallMessage) return true;
  grpc_byte_buffer_reader reader;
  if (grpc_byte_buffer_reader_init(&reader, request) == 0) return true;
  const grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
  const bool fits =
      Fits(type, std::string_view(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(all)),
                                  GRPC_SLICE_LENGTH(all)));
  grpc_slice_unref(all);
  grpc_byte_buffer_reader_destroy(&reader);
  return fits;
}

grpc::Status TooManyElements() {
  return {grpc::StatusCode::RESOURCE_EXHAUSTED,
          absl::StrCat("request: too many elements (at most ", kElementsOfAnyMessage,
                       " and one per ", kBytesOfAnElement, " bytes); send fewer")};
}

int MethodIndex(const std::string& name) {
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name)->index();
}

}  // namespace nsa::server
