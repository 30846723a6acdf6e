// Writes safetensors files piece by piece, so that no model is held in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/checkpoint/safetensors_file.h"

namespace nsa {

// A new file. Errors name it; ResourceExhausted when the disk is full.
class NewFile {
 public:
  // AlreadyExists when there is something of that name, a link too.
  static absl::StatusOr<NewFile> Create(const std::filesystem::path& path);

  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status Append(std::string_view text) {
    return Append(std::as_bytes(std::span(text.data(), text.size())));
  }
  // Calls fsync and closes the file.
  absl::Status Finish();

 private:
  NewFile(std::filesystem::path path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::filesystem::path path_;
  Fd fd_;
};

// Writes a whole file with this text.
absl::Status WriteNewFile(const std::filesystem::path& path, std::string_view text);

// Appends a tensor of `from`, converted to `type` (kF32 or kBf16): fp32 to bf16 is rounded to
// nearest, ties to even; bf16 and fp16 to fp32 are exact; equal types are copied bit by bit. fp16
// is not converted to bf16. Needs 8 MiB of memory.
absl::Status AppendTensor(const SafetensorsFile& from, const SafetensorsFile::Tensor& tensor,
                          TensorType type, NewFile* to);

// How the rows of a matrix are reordered: `width` of them are a head.
struct HeadOrder {
  int32_t width = 0;     // divides the rows
  bool to_pairs = true;  // rows i and i + width/2 of a head become 2i and 2i + 1; else the reverse
  double factor = 1;     // of every element
};

// As AppendTensor(), with reordered rows. Needs the memory of two heads.
absl::Status AppendHeads(const SafetensorsFile& from, const SafetensorsFile::Tensor& tensor,
                         const HeadOrder& order, TensorType type, NewFile* to);

// Appends this number of zero bytes.
absl::Status AppendZeros(int64_t bytes, NewFile* to);

}  // namespace nsa
