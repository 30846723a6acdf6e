// HTTP on loopback by civetweb: one request a connection, answered whole or as a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/serve/access.h"

struct mg_connection;
struct mg_context;

namespace nsa::train::serve {

// A request whose headers have arrived. Used by the thread that the handler was called on, and only
// until the handler returns.
class HttpExchange {
 public:
  explicit HttpExchange(mg_connection* connection);

  std::string method() const;
  std::string path() const;  // without query, decoded
  // Null when it is not there; the first when there are several.
  const char* header(const char* name) const;

  // The bytes that the body may have: its Content-Length, or `most` when it comes in chunks. An
  // error with the HTTP status 411 when it says neither, with 413 when it is above `most`.
  absl::StatusOr<size_t> BodyBytes(size_t most) const;
  // Reads the body, at most `most` bytes. An error with the HTTP status 413 when there are more,
  // with 408 when it did not arrive within ten seconds or stopped arriving for longer than
  // kStallMilliseconds.
  absl::StatusOr<std::string> ReadBody(size_t most);

  // `headers`: further ones, each with its line end.
  void Answer(int status, std::string_view type, std::string_view body,
              std::string_view headers = "");

  // Begins an answer whose parts follow, and sends one more. False when the client has gone or has
  // taken nothing for kStallMilliseconds.
  bool BeginStream(std::string_view type);
  bool SendPart(std::string_view part);
  void EndStream();

  // Whether the client has closed the connection, or its half of it.
  bool gone() const;

 private:
  bool Write(std::string_view bytes);

  mg_connection* const connection_;
  const int socket_;
  bool chunked_ = false;
};

// A client may be silent in the middle of a request, or leave an answer, for so long.
inline constexpr int kStallMilliseconds = 2'500;
// Connections that are served at the same time, and that wait for a thread; more wait in the
// kernel.
inline constexpr int kConnections = 128;
inline constexpr int kWaitingConnections = 64;

class HttpServer {
 public:
  // Calls `handle` for each request, at most kConnections at a time, each on a thread of its own;
  // it answers once. Unavailable when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const Listen& listen, std::function<void(HttpExchange&)> handle);
  // Waits until all requests were handled; up to kStallMilliseconds twice for clients that have
  // sent half a request.
  ~HttpServer();

  int port() const { return port_; }

 private:
  explicit HttpServer(std::function<void(HttpExchange&)> handle) : handle_(std::move(handle)) {}
  static int Begin(mg_connection* connection);

  const std::function<void(HttpExchange&)> handle_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace nsa::train::serve
