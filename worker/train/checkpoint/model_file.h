// Writes model.safetensors from pieces of the flat weights, so that nobody has all of them in
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/checkpoint/durable_file.h"
#include "worker/train/folder.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

// Takes the elements of the layout in order: some with Append(), others with TakeOver(). Errors
// name the file.
class ModelFile {
 public:
  // Creates the file in `folder` and writes its header. `layout` is borrowed.
  static absl::StatusOr<std::unique_ptr<ModelFile>> Create(const Folder& folder,
                                                           const ParameterLayout& layout,
                                                           int64_t step);

  // The next elements of the layout, those of the gaps between tensors included.
  absl::Status Append(std::span<const float> values);

  // The same for the elements that another rank has written into the file `part` of `folder`: fp32
  // in the order of bytes of the machine. Reads 4 MiB at a time, then removes the file. DataLoss
  // when its length or its hash is not what `part` says.
  absl::Status TakeOver(const Folder& folder, const v1::CheckpointFile& part);

  // Calls fsync. Returns name, length and hash. Internal when it was not given every
  // element of the layout once.
  absl::StatusOr<v1::CheckpointFile> Finish();

 private:
  ModelFile(const ParameterLayout& layout, std::unique_ptr<DurableFile> file)
      : layout_(layout), file_(std::move(file)) {}

  const ParameterLayout& layout_;
  const std::unique_ptr<DurableFile> file_;
  int64_t end_ = 0;      // elements of the layout so far
  size_t complete_ = 0;  // tensors
};

}  // namespace nsa::train
