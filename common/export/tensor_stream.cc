#include "common/export/tensor_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <functional>
#include <utility>

#include "common/base/status.h"
#include "common/base/write.h"

namespace nsa {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements

uint16_t RoundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);  // NaN
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float FromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // 0, or a number below 2^-14
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 0x1f ? 0xff : exponent + 127 - 15;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

// Elements of a tensor from `begin` on, as fp32.
absl::Status ReadFloats(const SafetensorsFile& from, const SafetensorsFile::Tensor& tensor,
                        int64_t begin, std::span<float> to) {
  if (tensor.type == TensorType::kF32) {
    return from.ReadBytes(tensor, 4 * begin, std::as_writable_bytes(to));
  }
  std::vector<uint16_t> narrow(to.size());
  NSA_RETURN_IF_ERROR(from.ReadBytes(tensor, 2 * begin, std::as_writable_bytes(std::span(narrow))));
  std::transform(narrow.begin(), narrow.end(), to.begin(),
                 tensor.type == TensorType::kF16 ? FromF16 : FromBf16);
  return absl::OkStatus();
}

// Reorders the rows of a head: those of its halves become pairs of neighbours, or the reverse.
void ReorderHead(int64_t width, bool to_pairs, const std::vector<float>& head,
                 std::vector<float>* reordered) {
  reordered->resize(head.size());
  const int64_t half = static_cast<int64_t>(head.size()) / width / 2;
  for (int64_t row = 0; row < 2 * half; ++row) {
    const int64_t pair = row < half ? 2 * row : 2 * (row - half) + 1;  // of a row of the halves
    const int64_t from = to_pairs ? row : pair, to = to_pairs ? pair : row;
    std::copy_n(head.begin() + from * width, width, reordered->begin() + to * width);
  }
}

absl::Status AppendFloats(std::span<const float> values, TensorType type, NewFile* to) {
  if (type == TensorType::kF32) return to->Append(std::as_bytes(values));
  std::vector<uint16_t> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), RoundToBf16);
  return to->Append(std::as_bytes(std::span(narrow)));
}

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
  if (!fd.valid()) return WriteError(errno, path.string());
  return NewFile(path, std::move(fd));
}

absl::Status NewFile::Append(std::span<const std::byte> bytes) {
  const std::string_view view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return WriteAll(fd_.get(), view) ? absl::OkStatus() : WriteError(errno, path_.string());
}

absl::Status NewFile::Finish() {
  if (fsync(fd_.get()) != 0) return WriteError(errno, path_.string());
  return Annotate(fd_.Close(), path_.string());
}

absl::Status WriteNewFile(const std::filesystem::path& path, std::string_view text) {
  NSA_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  NSA_RETURN_IF_ERROR(file.Append(text));
  return file.Finish();
}

absl::Status AppendTensor(const SafetensorsFile& from, const SafetensorsFile::Tensor& tensor,
                          TensorType type, NewFile* to) {
  if (tensor.type == TensorType::kF16) {
    if (type == TensorType::kF32) {
      return AppendConverted<uint16_t, float>(from, tensor, FromF16, to);
    }
    return absl::InvalidArgumentError("fp16 to bf16: not converted; take fp32");
  }
  const bool bf16 = tensor.type == TensorType::kBf16;
  if (type == TensorType::kBf16) {
    if (bf16) return AppendConverted<uint16_t, uint16_t>(from, tensor, std::identity(), to);
    return AppendConverted<float, uint16_t>(from, tensor, RoundToBf16, to);
  }
  if (bf16) return AppendConverted<uint16_t, float>(from, tensor, FromBf16, to);
  return AppendConverted<uint32_t, uint32_t>(from, tensor, std::identity(), to);
}

absl::Status AppendHeads(const SafetensorsFile& from, const SafetensorsFile::Tensor& tensor,
                         const HeadOrder& order, TensorType type, NewFile* to) {
  const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
  const int64_t width = rows > 0 ? tensor.size / rows : 0;  // of a row
  std::vector<float> head(static_cast<size_t>(order.width * width)), reordered;
  for (int64_t row = 0; row < rows; row += order.width) {
    NSA_RETURN_IF_ERROR(ReadFloats(from, tensor, row * width, head));
    for (float& value : head) value = static_cast<float>(value * order.factor);
    ReorderHead(width, order.to_pairs, head, &reordered);
    NSA_RETURN_IF_ERROR(AppendFloats(reordered, type, to));
  }
  return absl::OkStatus();
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
