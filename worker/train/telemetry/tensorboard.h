// TensorBoard's event file: records of u64 length, u32 masked CRC-32C of the length, an Event
// message, u32 masked CRC-32C of it; little-endian. Only scalars are written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/telemetry/append_file.h"

namespace nsa {

using Scalars = std::vector<std::pair<std::string, double>>;

// One thread at a time.
class TensorBoardFile {
 public:
  // Opens or creates events.out.tfevents.nsa in `folder` and removes events of steps above
  // `last_step` and a torn end.
  static absl::StatusOr<std::unique_ptr<TensorBoardFile>> Open(Folder folder, int64_t last_step,
                                                               double wall_time);

  // One event with all scalars.
  absl::Status Add(double wall_time, int64_t step, const Scalars& scalars);

  // As AppendFile::CheckInPlace().
  absl::Status CheckInPlace() const { return file_->CheckInPlace(); }

 private:
  explicit TensorBoardFile(std::unique_ptr<AppendFile> file) : file_(std::move(file)) {}
  const std::unique_ptr<AppendFile> file_;
};

// How much of an event file to keep: whole records with good checksums up to the first of a step
// above `last_step`; 0 when it does not begin with a version event.
size_t KeepEvents(std::string_view content, int64_t last_step);

}  // namespace nsa
