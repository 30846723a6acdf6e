// Reads files in the safetensors format, and begins new ones: the length of the header (8 bytes,
// little-endian), a JSON header, the data. https://github.com/huggingface/safetensors
//
//   {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
//   24]}, …}
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

// Computes the number of elements of a shape. False when it is negative or larger than an eighth of
// the largest int64_t.
bool ElementsOf(const std::vector<int64_t>& shape, int64_t* elements);

// The type of a tensor's elements.
enum class TensorType : uint8_t { kF32, kBf16, kF16 };
constexpr int64_t BytesOf(TensorType type) { return type == TensorType::kF32 ? 4 : 2; }

// One tensor of a file to write.
struct TensorHeader {
  std::string name;
  std::vector<int64_t> shape;
  int64_t size = 0;  // elements
};

// The beginning of a file of these tensors; their data follows, in order, without gaps. Its length
// is a multiple of 8.
std::string SafetensorsHeader(const std::vector<TensorHeader>& tensors, TensorType type,
                              const std::map<std::string, std::string>& metadata);

// Which element types Open() accepts. Checkpoints have F32 only.
enum class SafetensorsTypes : uint8_t { kF32, kFloats };  // kFloats: F32, BF16 and F16

// Reads a file. One thread at a time.
class SafetensorsFile {
 public:
  struct Tensor {
    std::vector<int64_t> shape;
    int64_t offset = 0;  // in the file, bytes
    int64_t size = 0;    // elements
    TensorType type = TensorType::kF32;

    int64_t bytes() const { return size * BytesOf(type); }
  };

  // Reads the header. DataLoss when it is invalid: cut off, over limits::kTensorHeaderBytes, not
  // JSON, another dtype, or offsets that overlap, leave gaps or run past the end.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(
      const std::filesystem::path& path, SafetensorsTypes types = SafetensorsTypes::kF32);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Reads the bytes of a tensor of this file from byte `begin` of it on, as they are stored.
  absl::Status ReadBytes(const Tensor& tensor, int64_t begin, std::span<std::byte> to) const;

 private:
  SafetensorsFile(std::filesystem::path path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  absl::Status ReadHeader(SafetensorsTypes types);
  absl::Status CheckOffsets(int64_t data_begin, int64_t file_bytes) const;
  absl::Status ReadAt(int64_t offset, std::span<std::byte> to) const;
  absl::Status Damaged(const std::string& why) const;

  const std::filesystem::path path_;
  const Fd fd_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace nsa
