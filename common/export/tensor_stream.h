// Writes safetensors files piece by piece, so that no model is held in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
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

// Appends a tensor of `from`, converted to `type`: fp32 to bf16 is rounded to nearest, ties to
// even; bf16 to fp32 is exact; equal types are copied bit by bit. Needs 8 MiB of memory.
absl::Status AppendTensor(const SafetensorsFile& from, const SafetensorsFile::Tensor& tensor,
                          TensorType type, NewFile* to);

// Appends this number of zero bytes.
absl::Status AppendZeros(int64_t bytes, NewFile* to);

}  // namespace nsa
