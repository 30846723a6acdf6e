// The format: the number of bytes as a varint, then elements. The low two bits of an element's
// first byte say what it is: 0 bytes that follow, 1 to 3 a copy of bytes that were written before.
#include "worker/train/data/read/parquet/snappy.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_format.h"

namespace nsa::train::parquet {
namespace {

absl::Status Fault(std::string_view what) {
  return absl::DataLossError(absl::StrCat("Snappy: ", absl::string_view(what.data(), what.size())));
}

class Decoder {
 public:
  Decoder(std::string_view from, std::span<char> to) : from_(from), to_(to) {}

  absl::Status Run() {
    uint64_t size = 0;
    if (!ReadSize(&size)) return Fault("no length");
    if (size != to_.size()) {
      return Fault(absl::StrFormat("%d bytes, where the page says %d", size, to_.size()));
    }
    while (!from_.empty()) {
      if (!Element()) {
        return Fault(absl::StrFormat("damaged after %d of %d bytes", done_, to_.size()));
      }
    }
    if (done_ == to_.size()) return absl::OkStatus();
    return Fault(absl::StrFormat("ends after %d of %d bytes", done_, to_.size()));
  }

 private:
  bool ReadSize(uint64_t* size) {
    for (int shift = 0; shift < 35 && !from_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(from_[0]);
      from_.remove_prefix(1);
      *size |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // The next `width` bytes as a number; false if there are fewer.
  bool Number(size_t width, uint32_t* value) {
    if (from_.size() < width) return false;
    *value = 0;
    std::memcpy(value, from_.data(), width);
    from_.remove_prefix(width);
    return true;
  }

  bool Element() {
    const auto tag = static_cast<uint8_t>(from_[0]);
    from_.remove_prefix(1);
    const size_t length = (tag >> 2) + size_t{1};
    uint32_t distance = 0;
    switch (tag & 3) {
      case 0:
        return Literal(length);
      case 1:
        if (!Number(1, &distance)) return false;
        return Copy(4 + ((tag >> 2) & 7), distance | (uint32_t{tag} >> 5) << 8);
      default:
        return Number((tag & 3) == 2 ? 2 : 4, &distance) && Copy(length, distance);
    }
  }

  // A length above 60 is in the one to four bytes that follow.
  bool Literal(size_t length) {
    if (length > 60) {
      uint32_t more = 0;
      if (!Number(length - 60, &more)) return false;
      length = size_t{more} + 1;
    }
    if (length > from_.size() || length > to_.size() - done_) return false;
    std::memcpy(to_.data() + done_, from_.data(), length);
    from_.remove_prefix(length);
    done_ += length;
    return true;
  }

  bool Copy(size_t length, size_t distance) {
    if (distance == 0 || distance > done_ || length > to_.size() - done_) return false;
    char* const to = to_.data() + done_;
    const char* const from = to - distance;
    if (distance >= length) {
      std::memcpy(to, from, length);
    } else {  // the copy repeats its own beginning
      for (size_t i = 0; i < length; ++i) to[i] = from[i];
    }
    done_ += length;
    return true;
  }

  std::string_view from_;
  const std::span<char> to_;
  size_t done_ = 0;
};

}  // namespace

absl::Status DecompressSnappy(std::string_view from, std::span<char> to) {
  return Decoder(from, to).Run();
}

}  // namespace nsa::train::parquet
