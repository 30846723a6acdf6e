#include "common/export/tensor_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <functional>
#include <utility>

#include "common/base/status.h"

namespace nsa {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements

uint16_t RoundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);  // NaN
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Reads the elements [begin, begin + count) of a tensor, converts them one by one and appends them.
template <class From, class To, class Convert>
absl::Status AppendConverted(const SafetensorsFile& from, const SafetensorsFile::Tensor& tensor,
                             Convert convert, NewFile* to) {
  std::vector<From> piece(static_cast<size_t>(std::min(kPiece, tensor.size)));
  std::vector<To> converted(piece.size());
  for (int64_t begin = 0; begin < tensor.size; begin += kPiece) {
    const auto count = static_cast<size_t>(std::min(kPiece, tensor.size - begin));
    const std::span<From> values = std::span(piece).first(count);
    NSA_RETURN_IF_ERROR(from.ReadBytes(tensor, begin * static_cast<int64_t>(sizeof(From)),
                                       std::as_writable_bytes(values)));
    std::transform(values.begin(), values.end(), converted.begin(), convert);
    NSA_RETURN_IF_ERROR(to->Append(std::as_bytes(std::span(converted).first(count))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NewFile> NewFile::Create(const std::filesystem::path& path) {
  Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, path.string());
  return NewFile(path, std::move(fd));
}

absl::Status NewFile::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, path_.string());
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status NewFile::Finish() {
  if (fsync(fd_.get()) != 0) return absl::ErrnoToStatus(errno, path_.string());
  return Annotate(fd_.Close(), path_.string());
}

absl::Status WriteNewFile(const std::filesystem::path& path, std::string_view text) {
  NSA_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  NSA_RETURN_IF_ERROR(file.Append(text));
  return file.Finish();
}

absl::Status AppendTensor(const SafetensorsFile& from, const SafetensorsFile::Tensor& tensor,
                          TensorType type, NewFile* to) {
  const bool bf16 = tensor.element_bytes == 2;
  if (type == TensorType::kBf16) {
    if (bf16) return AppendConverted<uint16_t, uint16_t>(from, tensor, std::identity(), to);
    return AppendConverted<float, uint16_t>(from, tensor, RoundToBf16, to);
  }
  if (bf16) return AppendConverted<uint16_t, float>(from, tensor, FromBf16, to);
  return AppendConverted<uint32_t, uint32_t>(from, tensor, std::identity(), to);
}

absl::Status AppendZeros(int64_t bytes, NewFile* to) {
  const std::vector<std::byte> zeros(static_cast<size_t>(std::min(bytes, 4 * kPiece)));
  for (; bytes > 0; bytes -= static_cast<int64_t>(zeros.size())) {
    const auto count = std::min(bytes, static_cast<int64_t>(zeros.size()));
    NSA_RETURN_IF_ERROR(to->Append(std::span(zeros).first(static_cast<size_t>(count))));
  }
  return absl::OkStatus();
}

}  // namespace nsa
