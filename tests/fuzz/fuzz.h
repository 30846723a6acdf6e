// What the targets of this folder share: taking an input apart, a folder for readers that take
// paths, and what a finding is.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "tests/testing/temp_dir.h"

namespace nsa::fuzz {

// A finding, unless `good`.
inline void Require(bool good, std::string_view what) {
  if (good) return;
  std::fprintf(stderr, "finding: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

// Bytes from outside are refused with one of these codes. Internal and Unknown say that we are at
// fault, and a text of many kilobytes has the input in it.
inline void RequireRefusal(const absl::Status& status) {
  if (status.ok()) return;
  const std::string text = status.ToString();
  Require(!absl::IsInternal(status) && !absl::IsUnknown(status), text);
  Require(text.size() < 64 << 10, "an error of " + std::to_string(text.size()) + " bytes");
}

// Takes the bytes of an input one after another; zeros once they have ended.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }
  uint8_t Byte() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  // Of eight bytes.
  int64_t Number() {
    uint64_t number = 0;
    for (int i = 0; i < 8; ++i) number = number << 8 | Byte();
    return static_cast<int64_t>(number);
  }
  // A length of two bytes, then that many bytes or what is left.
  std::string_view Text() {
    const size_t length = static_cast<size_t>(Byte()) << 8 | Byte();
    const std::string_view text = left_.substr(0, length);
    left_.remove_prefix(text.size());
    return text;
  }
  std::string_view Rest() const { return left_; }

 private:
  std::string_view left_;
};

// A folder in memory, for as long as the process lives.
inline const std::filesystem::path& Folder() {
  static const TempDir folder(std::filesystem::exists("/dev/shm")
                                  ? std::filesystem::path("/dev/shm")
                                  : std::filesystem::temp_directory_path());
  return folder.path();
}

// Writes a file of Folder().
inline std::filesystem::path File(const std::string& name, std::string_view content) {
  const std::filesystem::path path = Folder() / name;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  Require(
      fd >= 0 && write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
      "cannot write a file in memory");
  close(fd);
  return path;
}

}  // namespace nsa::fuzz
