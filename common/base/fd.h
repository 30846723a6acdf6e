// An open file descriptor with one owner.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"

namespace nsa {

// Closes its descriptor when it is destroyed; errno stays as it was, so that an error can be
// returned behind it. Move-only.
class Fd {
 public:
  // Owns `fd`, the result of open(2) and the like; a negative one is none.
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { Reset(); }

  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }

  // Closes now.
  void Reset() {
    if (fd_ < 0) return;
    const int saved = errno;
    close(std::exchange(fd_, -1));
    errno = saved;
  }

  // Closes now and reports what close(2) reports, e.g. data that a network file system or a quota
  // could not take. Nothing is open afterwards, whatever it returns.
  absl::Status Close() {
    if (fd_ < 0) return absl::OkStatus();
    if (close(std::exchange(fd_, -1)) == 0 || errno == EINTR) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, "close");
  }

 private:
  int fd_;
};

}  // namespace nsa
