#include "worker/train/telemetry/tensorboard.h"

#include <bit>
#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "worker/train/telemetry/crc32c.h"

namespace nsa::train {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

// Tags (field number << 3 | wire type) of
// tensorflow.Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary
// = 5; } tensorflow.Summary { message Value { string tag = 1; float simple_value = 2; } repeated
// Value value = 1; }
constexpr uint32_t kWallTime = 1 << 3 | 1;
constexpr uint32_t kStep = 2 << 3 | 0;
constexpr uint32_t kFileVersion = 3 << 3 | 2;
constexpr uint32_t kSummary = 5 << 3 | 2;
constexpr uint32_t kValue = 1 << 3 | 2;
constexpr uint32_t kTag = 1 << 3 | 2;
constexpr uint32_t kSimpleValue = 2 << 3 | 5;
constexpr char kVersion[] = "brain.Event:2";

// A protobuf message that is written field by field.
class Message {
 public:
  Message() : stream_(&bytes_), out_(std::make_unique<CodedOutputStream>(&stream_)) {}

  void Double(uint32_t tag, double value) {
    out_->WriteTag(tag);
    out_->WriteLittleEndian64(std::bit_cast<uint64_t>(value));
  }
  void Float(uint32_t tag, float value) {
    out_->WriteTag(tag);
    out_->WriteLittleEndian32(std::bit_cast<uint32_t>(value));
  }
  void Int(uint32_t tag, int64_t value) {
    out_->WriteTag(tag);
    out_->WriteVarint64(static_cast<uint64_t>(value));
  }
  void Bytes(uint32_t tag, const std::string& value) {
    out_->WriteTag(tag);
    out_->WriteVarint32(static_cast<uint32_t>(value.size()));
    out_->WriteString(value);
  }
  std::string Take() {
    out_.reset();  // flushes
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
  StringOutputStream stream_;
  std::unique_ptr<CodedOutputStream> out_;
};

std::string SummaryOf(const Scalars& scalars) {
  Message summary;
  for (const auto& [tag, number] : scalars) {
    Message value;
    value.Bytes(kTag, tag);
    value.Float(kSimpleValue, static_cast<float>(number));
    summary.Bytes(kValue, value.Take());
  }
  return summary.Take();
}

std::string EventOf(double wall_time, int64_t step, uint32_t tag, const std::string& content) {
  Message event;
  event.Double(kWallTime, wall_time);
  if (step != 0) event.Int(kStep, step);
  event.Bytes(tag, content);
  return event.Take();
}

template <typename T>
std::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string Record(const std::string& event) {
  const uint64_t length = event.size();
  const uint32_t length_crc = MaskedCrc32c(BytesOf(length));
  const uint32_t event_crc = MaskedCrc32c(event);
  std::string record;
  for (const std::string_view part :
       {BytesOf(length), BytesOf(length_crc), std::string_view(event), BytesOf(event_crc)}) {
    record += part;
  }
  return record;
}

template <typename T>
T Take(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// The event at the start of `content`; empty when it is incomplete or damaged.
std::string_view FirstEvent(std::string_view content) {
  if (content.size() < 16) return {};
  const auto length = Take<uint64_t>(content);
  if (Take<uint32_t>(content.substr(8)) != MaskedCrc32c(content.substr(0, 8))) return {};
  if (length > content.size() - 16) return {};
  const std::string_view event = content.substr(12, length);
  return Take<uint32_t>(content.substr(12 + length)) == MaskedCrc32c(event) ? event
                                                                            : std::string_view();
}

// The step of an event that EventOf() has written: it follows the wall time and is absent when 0.
int64_t StepOf(std::string_view event) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(event.data()),
                      static_cast<int>(event.size()));
  uint64_t step = 0;
  if (in.ReadTag() != kWallTime || !in.Skip(8)) return 0;
  return in.ReadTag() == kStep && in.ReadVarint64(&step) ? static_cast<int64_t>(step) : 0;
}

}  // namespace

size_t KeepEvents(std::string_view content, int64_t last_step) {
  if (FirstEvent(content).find(kVersion) == std::string_view::npos) return 0;
  size_t kept = 0;
  while (true) {
    const std::string_view event = FirstEvent(content.substr(kept));
    if (event.empty() || StepOf(event) > last_step) return kept;
    kept += 16 + event.size();
  }
}

absl::StatusOr<std::unique_ptr<TensorBoardFile>> TensorBoardFile::Open(Folder folder,
                                                                       int64_t last_step,
                                                                       double wall_time) {
  NSA_ASSIGN_OR_RETURN(
      auto file,
      AppendFile::Open(std::move(folder), "events.out.tfevents.nsa",
                       Record(EventOf(wall_time, 0, kFileVersion, kVersion)),
                       [&](std::string_view content) { return KeepEvents(content, last_step); }));
  return std::unique_ptr<TensorBoardFile>(new TensorBoardFile(std::move(file)));
}

absl::Status TensorBoardFile::Add(double wall_time, int64_t step, const Scalars& scalars) {
  return file_->Append(Record(EventOf(wall_time, step, kSummary, SummaryOf(scalars))));
}

}  // namespace nsa::train
