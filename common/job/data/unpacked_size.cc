#include "common/job/data/unpacked_size.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/job_file.h"

namespace nsa {
namespace {

constexpr int64_t kAtMost = int64_t{1} << 50;  // whatever a file says

// A number of these bytes, the least first.
int64_t LittleEndian(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    number = number << 8 | static_cast<unsigned char>(bytes[i - 1]);
  }
  return static_cast<int64_t>(std::min<uint64_t>(number, kAtMost));
}

// RFC 8878, 3.1.1.1: a descriptor, then a window, the id of a dictionary and the size.
int64_t OfZstd(std::string_view frame) {
  if (frame.empty()) return 0;
  const auto descriptor = static_cast<unsigned char>(frame[0]);
  const bool single_segment = (descriptor & 0x20) != 0;
  constexpr std::array<size_t, 4> kIdBytes = {0, 1, 2, 4};
  const std::array<size_t, 4> size_bytes = {single_segment ? size_t{1} : 0, 2, 4, 8};
  const size_t at = 1 + (single_segment ? 0 : 1) + kIdBytes[descriptor & 3];
  const size_t bytes = size_bytes[descriptor >> 6];
  if (frame.size() < at + bytes) return 0;
  return LittleEndian(frame.substr(at, bytes)) + (bytes == 2 ? 256 : 0);
}

}  // namespace

int64_t SaidUnpackedBytes(const std::filesystem::path& path) {
  using namespace std::literals;
  constexpr int64_t kHeadBytes = 18;
  constexpr int64_t kGzipSizeBytes = 4;
  const absl::StatusOr<Fd> file = OpenJobFile(path);
  if (!file.ok()) return 0;
  const std::string head = ReadSome(file->get(), 0, kHeadBytes);
  if (head.starts_with("\x28\xb5\x2f\xfd"sv)) return OfZstd(std::string_view(head).substr(4));
  const int64_t size = lseek(file->get(), 0, SEEK_END);
  if (!head.starts_with("\x1f\x8b"sv) || size < kHeadBytes) return 0;
  return LittleEndian(ReadSome(file->get(), size - kGzipSizeBytes, kGzipSizeBytes));
}

}  // namespace nsa
