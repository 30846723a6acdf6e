#include "server/rpc/gate/frame_watch.h"

#include <algorithm>
#include <utility>

namespace nsa::server {
namespace {

constexpr std::string_view kGreeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kHead = 9;
constexpr uint32_t kSmall = 64;

enum Type : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kContinuation = 9,
};
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;

}  // namespace

FrameWatch::Buckets::Buckets(const FrameLimits& limits)
    : streams(limits.streams, limits.streams_burst),
      small(limits.small, limits.small_burst),
      resets(limits.resets, limits.resets_burst),
      settings(limits.settings, limits.settings_burst),
      pings(limits.pings, limits.pings_burst),
      empty(limits.empty, limits.empty_burst) {}

size_t FrameWatch::Pass(std::string_view bytes, bool known, absl::Duration now) {
  waits_ = false;
  size_t at = 0;
  if (!greeted_) {
    if (!Greet(bytes)) return 0;
    at = kGreeting.size();
  }
  if (strangers_ == nullptr) return bytes.size();
  while (fault_ == nullptr && at < bytes.size()) {
    if (payload_ > 0) {
      const size_t part = std::min<size_t>(payload_, bytes.size() - at);
      payload_ -= static_cast<uint32_t>(part);
      at += part;
      continue;
    }
    if (bytes.size() - at < kHead) break;
    const Frame frame = Read(bytes.substr(at, kHead));
    if (!Admit(frame, known, now)) break;
    payload_ = frame.length;
    at += kHead;
  }
  return at;
}

FrameWatch::Frame FrameWatch::Read(std::string_view head) {
  const auto byte = [head](size_t at) {
    return static_cast<uint32_t>(static_cast<uint8_t>(head[at]));
  };
  return {.length = byte(0) << 16 | byte(1) << 8 | byte(2),
          .type = static_cast<uint8_t>(byte(3)),
          .flags = static_cast<uint8_t>(byte(4)),
          .stream = (byte(5) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8)) & 0x7fffffff};
}

bool FrameWatch::Greet(std::string_view bytes) {
  const size_t common = std::min(bytes.size(), kGreeting.size());
  if (bytes.substr(0, common) != kGreeting.substr(0, common)) return Fail("not_http2");
  greeted_ = common == kGreeting.size();
  return greeted_;
}

bool FrameWatch::Admit(const Frame& frame, bool known, absl::Duration now) {
  Buckets& buckets = known ? of_known_ : of_stranger_;
  if (frame.type != kData && frame.length > kLargestControlFrame) return Fail("frame_size");
  if (frame.type == kContinuation) return AdmitContinuation(frame);
  if (block_stream_ != 0) return Fail("continuation");  // nothing may come within a header block
  switch (frame.type) {
    case kHeaders:
      return AdmitHeaders(frame, known, now);
    case kPushPromise:
      return Fail("push_promise");
    case kReset:
      open_.erase(frame.stream);
      return buckets.resets.Take(now) || Fail("rst_stream");
    case kSettings:
      return buckets.settings.Take(now) || Fail("settings");
    case kPing:
      return buckets.pings.Take(now) || Fail("ping");
    default:
      break;
  }
  const bool empty = frame.type == kData && frame.length == 0 && (frame.flags & kEndStream) == 0;
  if (empty && !buckets.empty.Take(now)) return Fail("empty_data");
  return frame.length >= kSmall || buckets.small.Take(now) || Wait();
}

bool FrameWatch::AdmitHeaders(const Frame& frame, bool known, absl::Duration now) {
  if (frame.stream == 0) return Fail("headers");
  if (!AdmitStream(frame.stream, known, now)) return Wait();
  if ((frame.flags & kEndHeaders) != 0) return true;
  block_stream_ = frame.stream;
  block_bytes_ = frame.length;
  continuations_ = 0;
  return true;
}

bool FrameWatch::AdmitStream(uint32_t stream, bool known, absl::Duration now) {
  const bool first = !std::exchange(had_stream_, true);
  if (known) return first || of_known_.streams.Take(now);
  if (!first && !(of_stranger_.streams.Take(now) && strangers_->Take(now))) return false;
  open_.insert(stream);
  return true;
}

void FrameWatch::NoteAnswer(std::string_view bytes, bool known) {
  if (known || strangers_ == nullptr) {
    open_.clear();  // and is never looked at again
    return;
  }
  while (!bytes.empty()) {
    if (answer_payload_ > 0) {
      const size_t part = std::min<size_t>(answer_payload_, bytes.size());
      answer_payload_ -= static_cast<uint32_t>(part);
      bytes.remove_prefix(part);
      continue;
    }
    const size_t part = std::min(kHead - answer_head_.size(), bytes.size());
    answer_head_.append(bytes.substr(0, part));
    bytes.remove_prefix(part);
    if (answer_head_.size() < kHead) return;
    const Frame frame = Read(answer_head_);
    answer_head_.clear();
    answer_payload_ = frame.length;
    const bool carries = frame.type == kHeaders || frame.type == kData;
    if (frame.type == kReset || (carries && (frame.flags & kEndStream) != 0)) {
      open_.erase(frame.stream);
    }
  }
}

bool FrameWatch::AdmitContinuation(const Frame& frame) {
  if (block_stream_ == 0 || frame.stream != block_stream_) return Fail("continuation");
  block_bytes_ += frame.length;
  if (++continuations_ > kMostContinuations || block_bytes_ > kLargestHeaderBlock) {
    return Fail("continuation");
  }
  if ((frame.flags & kEndHeaders) != 0) block_stream_ = 0;
  return true;
}

bool FrameWatch::Wait() {
  waits_ = true;
  return false;
}

bool FrameWatch::Fail(const char* fault) {
  fault_ = fault;
  return false;
}

}  // namespace nsa::server
