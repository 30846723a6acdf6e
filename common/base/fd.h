// An open file descriptor with one owner.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"

namespace nsa {

// Closes the descriptor when it is destroyed. Destruction keeps errno, so that the caller can still
// report an earlier error. Move-only.
class Fd {
 public:
  // Takes ownership of `fd`, e.g. the result of open(2). A negative value means no descriptor.
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { Reset(); }

  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }

  // Gives the descriptor away: the caller owns it now.
  int Release() { return std::exchange(fd_, -1); }

  // Closes the descriptor now; keeps errno.
  void Reset() {
    if (fd_ < 0) return;
    const int saved = errno;
    close(std::exchange(fd_, -1));
    errno = saved;
  }

  // Closes the descriptor now and returns the error of close(2), e.g. when a network file system or
  // a quota did not accept the data. The descriptor is closed even if an error is returned.
  absl::Status Close() {
    if (fd_ < 0) return absl::OkStatus();
    if (close(std::exchange(fd_, -1)) == 0 || errno == EINTR) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, "close");
  }

 private:
  int fd_;
};

}  // namespace nsa
