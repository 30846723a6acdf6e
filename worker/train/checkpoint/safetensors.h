// The safetensors format: the length of the header (8 bytes, little-endian), a JSON header, the
// data. This code writes and reads F32 only. https://github.com/huggingface/safetensors
//
//   {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
//   24]}, …}
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/folder.h"

namespace nsa {

// A tensor to write. `values` is borrowed; its size is the product of `shape`.
struct TensorToWrite {
  std::string name;
  std::vector<int64_t> shape;
  std::span<const float> values;
};

// Writes the file `name` in `folder` and calls fsync. The data begins at a multiple of 8 bytes.
// Returns name, length and hash.
absl::StatusOr<v1::CheckpointFile> WriteSafetensors(
    const Folder& folder, const std::string& name, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata);

// Reads a file. One thread at a time.
class SafetensorsFile {
 public:
  struct Tensor {
    std::vector<int64_t> shape;
    int64_t offset = 0;  // in the file, bytes
    int64_t size = 0;    // elements
  };

  // Reads the header. DataLoss when it is invalid: cut off, over 100 MB, not JSON, another dtype,
  // or offsets that overlap, leave gaps or run past the end.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::filesystem::path& path);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Reads the tensor `name` into `values`. NotFound when there is none; FailedPrecondition when its
  // size differs.
  absl::Status Read(const std::string& name, std::span<float> values) const;

 private:
  SafetensorsFile(std::filesystem::path path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  absl::Status ReadHeader();
  absl::Status CheckOffsets(int64_t data_begin, int64_t file_bytes) const;
  absl::Status ReadBytes(int64_t offset, std::span<std::byte> to) const;
  absl::Status Damaged(const std::string& why) const;

  const std::filesystem::path path_;
  const Fd fd_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace nsa
