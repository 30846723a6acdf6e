// An HTTP server on loopback that answers as a test says, also wrongly.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"

namespace nsa {

class DataServer {
 public:
  struct Request {
    std::string method;
    std::string target;
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;                            // at most kMostBody bytes
    int number = 0;                              // from 1

    std::string header(const std::string& name) const {
      const auto found = headers.find(name);
      return found == headers.end() ? "" : found->second;
    }
    // Of "Range: bytes=0-9": 0 and 10; false without one.
    bool Range(size_t* begin, size_t* end) const {
      const std::vector<std::string> ends =
          absl::StrSplit(header("range").substr(std::min<size_t>(6, header("range").size())), '-');
      if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], begin) ||
          !absl::SimpleAtoi(ends[1], end)) {
        return false;
      }
      ++*end;
      return true;
    }
  };

  struct Reply {
    int status = 200;
    std::vector<std::pair<std::string, std::string>> headers;
    std::string body;
    int64_t promised = -1;      // Content-Length; -1: that of the body
    absl::Duration stall = {};  // before the body's second half
    bool hang_up = false;       // close the connection without an answer
  };
  using Handler = std::function<Reply(const Request&)>;

  explicit DataServer(Handler handler) : handler_(std::move(handler)) {
    sockaddr_in address{.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    listen(listener_.get(), 64);
    socklen_t length = sizeof(address);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Loop(); });
  }
  ~DataServer() {
    {
      const MutexLock lock(&mutex_);
      ending_ = true;
      changed_.SignalAll();
    }
    thread_.join();
    for (std::thread& one : connections_) one.join();
  }
  DataServer(const DataServer&) = delete;
  DataServer& operator=(const DataServer&) = delete;

  std::string url(const std::string& path) const {
    return absl::StrCat("http://127.0.0.1:", port_, path);
  }
  int port() const { return port_; }
  std::vector<Request> seen() {
    const MutexLock lock(&mutex_);
    return seen_;
  }

  // What a good server answers for this content.
  static Reply Serve(const Request& request, const std::string& content,
                     const std::string& etag = "\"one\"") {
    Reply reply;
    if (!etag.empty()) reply.headers.emplace_back("ETag", etag);
    size_t begin = 0, end = 0;
    if (!request.Range(&begin, &end)) {
      reply.body = content;
    } else if (begin >= content.size()) {
      reply.status = 416;
      reply.headers.emplace_back("Content-Range", absl::StrCat("bytes */", content.size()));
    } else {
      end = std::min(end, content.size());
      reply.status = 206;
      reply.body = content.substr(begin, end - begin);
      reply.headers.emplace_back("Content-Range",
                                 absl::StrCat("bytes ", begin, "-", end - 1, "/", content.size()));
    }
    return reply;
  }

 private:
  void Loop() {
    while (true) {
      pollfd wait{.fd = listener_.get(), .events = POLLIN};
      poll(&wait, 1, 20);
      {
        const MutexLock lock(&mutex_);
        if (ending_) return;
      }
      if (wait.revents == 0) continue;
      auto fd = std::make_shared<Fd>(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      connections_.emplace_back([this, fd] { Answer(*fd); });
    }
  }

  static constexpr size_t kMostBody = 4 << 20;

  // Appends what arrives next, at most `most` bytes; false when nothing does.
  static bool Receive(const Fd& fd, size_t most, std::string* to) {
    std::string bytes(std::min<size_t>(most, 64 << 10), '\0');
    pollfd wait{.fd = fd.get(), .events = POLLIN};
    if (poll(&wait, 1, 10'000) <= 0) return false;
    const ssize_t arrived = recv(fd.get(), bytes.data(), bytes.size(), 0);
    if (arrived > 0) to->append(bytes, 0, static_cast<size_t>(arrived));
    return arrived > 0;
  }

  static std::string ReadHead(const Fd& fd) {
    std::string head;
    while (head.size() < 16'384 && !head.ends_with("\r\n\r\n")) {
      if (!Receive(fd, 1, &head)) return "";
    }
    return head;
  }

  static std::string ReadBody(const Fd& fd, const Request& request) {
    size_t bytes = 0;
    std::string body;
    if (!absl::SimpleAtoi(request.header("content-length"), &bytes)) return body;
    bytes = std::min(bytes, kMostBody);
    while (body.size() < bytes && Receive(fd, bytes - body.size(), &body)) continue;
    return body;
  }

  void Answer(const Fd& fd) {
    const std::string head = ReadHead(fd);
    if (head.empty()) return;
    const std::vector<std::string> lines = absl::StrSplit(head, "\r\n");
    const std::vector<std::string> words = absl::StrSplit(lines[0], ' ');
    Request request{.method = words[0], .target = words[1]};
    for (const std::string& line : lines) {
      const size_t colon = line.find(": ");
      if (colon == std::string::npos) continue;
      request.headers[absl::AsciiStrToLower(line.substr(0, colon))] = line.substr(colon + 2);
    }
    request.body = ReadBody(fd, request);
    {
      const MutexLock lock(&mutex_);
      request.number = static_cast<int>(seen_.size()) + 1;
      seen_.push_back(request);
    }
    Send(fd, handler_(request));
  }

  void Send(const Fd& fd, const Reply& reply) {
    if (reply.hang_up) return;
    const int64_t promised = reply.promised >= 0 ? reply.promised : std::ssize(reply.body);
    std::string head = absl::StrCat("HTTP/1.1 ", reply.status, " x\r\nContent-Length: ", promised,
                                    "\r\nConnection: close\r\n");
    for (const auto& [name, value] : reply.headers)
      absl::StrAppend(&head, name, ": ", value, "\r\n");
    const size_t half = reply.stall > absl::ZeroDuration() ? reply.body.size() / 2 : 0;
    SendAll(fd, head + "\r\n" + reply.body.substr(0, half));
    if (reply.stall > absl::ZeroDuration()) {
      const MutexLock lock(&mutex_);
      if (!ending_) changed_.WaitFor(&mutex_, reply.stall);
    }
    SendAll(fd, reply.body.substr(half));
  }

  static void SendAll(const Fd& fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

  const Handler handler_;
  const Fd listener_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Request> seen_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> connections_;  // of the thread
  std::thread thread_;
};

}  // namespace nsa
