// One connection between a client and gRPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/rpc/tls_server.h"
#include "server/rpc/gate/callers.h"
#include "server/rpc/gate/frame_watch.h"
#include "server/watch/connection_source.h"

namespace nsa::server {

// Bytes on their way in one direction: at most kSize.
class RelayBuffer {
 public:
  static constexpr size_t kSize = 32 << 10;

  std::string_view content() const { return {bytes_.get() + begin_, end_ - begin_}; }
  bool empty() const { return begin_ == end_; }
  bool full() const { return end_ - begin_ == kSize; }

  // Where the next bytes go; not empty unless it is full.
  char* Space(size_t* size);
  void Added(size_t size) { end_ += size; }
  void Taken(size_t size);
  // Gives memory back that holds nothing.
  void Shrink() {
    if (empty()) bytes_.reset();
  }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

// Used by the gate's thread only.
class Connection {
 public:
  enum class State {
    kOpen,
    kBusy,    // there is more to do at once
    kClosed,  // it is over; see fault()
  };

  // `strangers`: see FrameWatch; null: of the unix socket. `tls` may be null.
  Connection(Fd client, ConnectionSource source, std::unique_ptr<TlsSession> tls, Bucket* strangers,
             absl::Duration now);
  ~Connection();

  // Moves what can be moved. `now` is of a monotonic clock.
  State Pump(absl::Duration now);

  // The client speaks HTTP/2 and nobody listens to it yet.
  bool NeedsBackend() const { return frames_.speaks() && !backend_.valid(); }
  // Makes the pair of sockets and returns gRPC's end; none when it cannot.
  Fd MakeBackend();

  // What to wait for, as epoll's events.
  uint32_t client_events() const;
  uint32_t backend_events() const;  // 0: do not wait, not even for an end

  // Why it must end; null: for no fault of the client's.
  const char* fault() const { return fault_; }
  bool waits() const { return frames_.waits(); }
  size_t open_streams() const { return frames_.open_streams(); }  // while it is not known
  bool handshakes() const { return tls_ != nullptr && !tls_->ready(); }
  bool known() const { return caller_->known; }
  bool speaks() const { return frames_.speaks(); }
  int client() const { return client_.get(); }
  int backend() const { return backend_.get(); }
  const ConnectionSource& source() const { return source_; }
  absl::Duration accepted() const { return accepted_; }
  absl::Duration heard() const { return heard_; }  // when the client sent something
  absl::Duration ended() const { return ended_; }  // since when one side is at its end; 0: no side
  void Shrink();
  // The client gets no orderly end but a reset, which frees everything at once.
  void Reset();

 private:
  enum class Moved { kNothing, kSomething, kFailed };

  Moved Handshake();
  Moved FromClient(absl::Duration now);
  Moved ToBackend(absl::Duration now);
  Moved FromBackend();
  Moved ToClient();
  Moved Fail(const char* fault);
  // After an attempt to read or write the client.
  Moved Note(TlsResult result);
  // Reads or writes by TLS or without.
  TlsResult Read(char* to, size_t size, size_t* got);
  TlsResult Write(std::string_view bytes, size_t* put);
  bool NoteEnds(absl::Duration now);

  Fd client_;
  Fd backend_;
  const ConnectionSource source_;
  const std::unique_ptr<TlsSession> tls_;
  const std::shared_ptr<GateCaller> caller_ = std::make_shared<GateCaller>();
  std::optional<GateCallerName> name_;
  FrameWatch frames_;
  RelayBuffer up_;     // to gRPC
  size_t passed_ = 0;  // of up_: what frames_ has passed
  RelayBuffer down_;   // to the client
  const absl::Duration accepted_;
  absl::Duration heard_;
  absl::Duration ended_;
  const char* fault_ = nullptr;
  bool client_ended_ = false;    // it sends nothing more
  bool backend_ended_ = false;   // nor does gRPC
  bool told_backend_ = false;    // that the client sends nothing more
  bool client_blocked_ = false;  // wait until it can be written
  bool backend_blocked_ = false;
};

}  // namespace nsa::server
