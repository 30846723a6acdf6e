// A TCP proxy on loopback whose other side can vanish: after Freeze() nothing is forwarded in
// either direction and nothing is closed, as when a host loses its power or its network cable.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"

namespace nsa {

class TcpProxy {
 public:
  // Forwards to this port of this machine.
  explicit TcpProxy(uint16_t to) : to_(to) {
    sockaddr_in address = Loopback(0);
    bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    listen(listener_.get(), 128);
    socklen_t length = sizeof(address);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Loop(); });
  }
  ~TcpProxy() {
    ending_ = true;
    thread_.join();
  }
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // From now on all data is lost. When this returns, data that was in transit has arrived or is
  // lost.
  void Freeze() {
    MutexLock lock(&mutex_);
    frozen_ = true;
  }

  // Forwards again what arrives from now on, and what clients have sent that was not received yet.
  void Thaw() {
    MutexLock lock(&mutex_);
    frozen_ = false;
  }

  // The number of connections that the server has not closed.
  int HeldByServer() {
    MutexLock lock(&mutex_);
    int held = 0;
    for (const Pair& pair : pairs_) {
      // Data that the server sent before closing comes before the end of the stream. Once frozen,
      // it can be dropped.
      char buffer[4096];
      ssize_t n = 0;
      const int flags = MSG_DONTWAIT | (frozen_ ? 0 : MSG_PEEK);
      while ((n = recv(pair.server.get(), buffer, sizeof(buffer), flags)) > 0 && frozen_) {
      }
      if (n > 0 || (n < 0 && errno == EAGAIN)) ++held;
    }
    return held;
  }

 private:
  struct Pair {
    Fd client;
    Fd server;
    bool ended = false;
  };

  static sockaddr_in Loopback(uint16_t port) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  // Forwards the data that has arrived. Returns false at the end of the stream.
  static bool Forward(const Fd& from, const Fd& to) {
    char buffer[65536];
    const ssize_t n = recv(from.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN;
    for (ssize_t sent = 0; sent < n;) {
      const ssize_t k = send(to.get(), buffer + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
      if (k <= 0) return false;
      sent += k;
    }
    return n > 0;
  }

  void Loop() {
    while (!ending_) {
      std::vector<pollfd> waits = {{.fd = listener_.get(), .events = POLLIN}};
      {
        MutexLock lock(&mutex_);
        for (const Pair& pair : pairs_) {
          if (frozen_ || pair.ended) continue;
          waits.push_back({.fd = pair.client.get(), .events = POLLIN});
          waits.push_back({.fd = pair.server.get(), .events = POLLIN});
        }
      }
      poll(waits.data(), waits.size(), 20);
      MutexLock lock(&mutex_);
      if (frozen_) continue;
      if (waits[0].revents != 0) Accept();
      for (Pair& pair : pairs_) {
        if (pair.ended) continue;
        if (Forward(pair.client, pair.server) && Forward(pair.server, pair.client)) continue;
        pair.ended = true;
        shutdown(pair.client.get(), SHUT_RDWR);
        shutdown(pair.server.get(), SHUT_RDWR);
      }
    }
  }

  void Accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Pair pair;
    pair.client = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    pair.server = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Loopback(to_);
    connect(pair.server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    pairs_.push_back(std::move(pair));
  }

  const uint16_t to_;
  const Fd listener_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  uint16_t port_ = 0;
  std::atomic<bool> ending_ = false;
  Mutex mutex_;
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Pair> pairs_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nsa
