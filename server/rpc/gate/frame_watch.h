// Watches what a client sends over HTTP/2, by the heads of its frames only. gRPC 1.51 keeps what it
// cannot handle yet without a limit: streams that are reset at once, header blocks that do not end,
// frames that want an answer. Clients that send more of those than any honest one are disconnected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "server/watch/bucket.h"

namespace nsa::server {

// The limits of one connection. Those that end it are at least ten times what gRPC's clients in
// C++, Go, Java, Node and Python send in the worst case.
struct FrameLimits {
  double streams, streams_burst;  // beyond: the connection waits
  double small, small_burst;      // frames of less than 64 bytes; beyond: the connection waits
  double resets, resets_burst;    // beyond: it ends, and so below
  double settings, settings_burst;
  double pings, pings_burst;
  double empty, empty_burst;  // DATA frames that carry nothing and end nothing
};
// Of a connection that has made a call with a valid token, and of one that has not.
inline constexpr FrameLimits kKnownFrames = {1'000, 2'000, 20'000, 40'000, 200, 4'000,
                                             5,     50,    1'000,  10'000, 10,  200};
inline constexpr FrameLimits kStrangersFrames = {50, 100, 2'000, 4'000, 20, 200,
                                                 5,  50,  20,    200,   10, 100};
// Of a header block. gRPC itself refuses more than 8 KiB, but only at its end.
inline constexpr size_t kLargestHeaderBlock = 64 << 10;
inline constexpr int kMostContinuations = 16;
// Of any frame but DATA.
inline constexpr size_t kLargestControlFrame = 64 << 10;

// One connection. Not thread-safe.
class FrameWatch {
 public:
  // `strangers` limits the streams of all connections without a valid token together; the first
  // stream of each is free, so that a flood does not keep a client from showing its token.
  // Borrowed. Null: a caller of the unix socket, who has to speak HTTP/2 and is not limited.
  explicit FrameWatch(Bucket* strangers)
      : strangers_(strangers), of_stranger_(kStrangersFrames), of_known_(kKnownFrames) {}

  // How many of `bytes`, which follow those that passed before, may go on at `now`. What does not
  // pass is given again, with what came after it. `known`: see kKnownFrames.
  size_t Pass(std::string_view bytes, bool known, absl::Duration now);

  // What gRPC answers, in pieces of any size: it ends streams.
  void NoteAnswer(std::string_view bytes, bool known);
  // Streams that have begun and not ended. Not counted any more of a client that is known.
  size_t open_streams() const { return open_.size(); }

  // Whether the client has begun to speak HTTP/2 at all.
  bool speaks() const { return greeted_; }
  // Why the connection must end: "rst_stream", "continuation", …; null: it need not.
  const char* fault() const { return fault_; }
  // Whether the last Pass() stopped at a limit that time alone lifts.
  bool waits() const { return waits_; }

 private:
  struct Frame {
    uint32_t length;
    uint8_t type;
    uint8_t flags;
    uint32_t stream;
  };
  struct Buckets {
    explicit Buckets(const FrameLimits& limits);
    Bucket streams, small, resets, settings, pings, empty;
  };

  static Frame Read(std::string_view head);
  bool Greet(std::string_view bytes);
  bool Admit(const Frame& frame, bool known, absl::Duration now);
  bool AdmitHeaders(const Frame& frame, bool known, absl::Duration now);
  bool AdmitContinuation(const Frame& frame);
  bool AdmitStream(uint32_t stream, bool known, absl::Duration now);
  bool Wait();
  bool Fail(const char* fault);

  Bucket* const strangers_;
  Buckets of_stranger_;
  Buckets of_known_;
  bool greeted_ = false;
  bool waits_ = false;
  bool had_stream_ = false;
  const char* fault_ = nullptr;
  std::set<uint32_t> open_;  // streams of a stranger
  std::string answer_head_;  // the part of a frame's head that has come
  uint32_t answer_payload_ = 0;
  uint32_t payload_ = 0;       // still to come of the frame
  uint32_t block_stream_ = 0;  // whose header block has not ended; 0: none
  size_t block_bytes_ = 0;
  int continuations_ = 0;
};

}  // namespace nsa::server
