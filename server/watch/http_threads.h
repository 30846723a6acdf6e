// Answers whole HTTP requests, each on a thread of its own from the first byte to the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "server/watch/http.h"

namespace nsa::server {

class HttpThreads {
 public:
  // `handler` is called on these threads; `waiting`: requests that may wait for one. Throws
  // std::system_error when the machine gives no more threads.
  HttpThreads(int threads, int waiting, HttpHandler handler);
  // Waits for the requests that are being answered; a stream ends with its reader. Those that wait
  // are dropped.
  ~HttpThreads();

  // Answers a whole request (http_front.h) on `to`, a socket that blocks, and closes it. False, and
  // it only closes it, when too many wait. A reader that takes nothing for 2.5 s gets no more; a
  // request whose reader has left before its turn has no effect.
  bool Serve(Fd to, std::string request);

 private:
  void Stop();
  void Loop();
  void Answer(const Fd& to, std::string_view request) const;

  const size_t most_waiting_;
  const HttpHandler handler_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::pair<Fd, std::string>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

// What a whole request asks for; none when it is no request of HTTP/1.
std::optional<HttpRequest> ParseRequest(std::string_view request);

// "%41" becomes "A"; what is no such pair stays. `form`: a plus is a space.
std::string DecodePercent(std::string_view text, bool form);

// The status line of a reply and its headers, with the empty line after them. `length`: of the
// body; negative for a stream, which ends with the connection.
std::string HeadOfReply(int status, std::string_view type, int64_t length,
                        const std::vector<std::pair<std::string, std::string>>& headers = {});

}  // namespace nsa::server
