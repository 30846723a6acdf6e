// TensorBoard's event file. A record is the length (u64), the masked CRC-32C of the length (u32),
// an Event message, and the masked CRC-32C of the message (u32), all little-endian. Only scalars
// are written.
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

namespace nsa::train {

using Scalars = std::vector<std::pair<std::string, double>>;

// One thread at a time.
class TensorBoardFile {
 public:
  // Opens or creates events.out.tfevents.nsa in `folder`. Removes events of steps above `last_step`
  // and an incomplete record at the end.
  static absl::StatusOr<std::unique_ptr<TensorBoardFile>> Open(Folder folder, int64_t last_step,
                                                               double wall_time);

  // Appends one event with all scalars.
  absl::Status Add(double wall_time, int64_t step, const Scalars& scalars);

  // See AppendFile::CheckInPlace().
  absl::Status CheckInPlace() const { return file_->CheckInPlace(); }

 private:
  explicit TensorBoardFile(std::unique_ptr<AppendFile> file) : file_(std::move(file)) {}
  const std::unique_ptr<AppendFile> file_;
};

// How many bytes of an event file to keep: whole records with correct checksums, up to the first
// one whose step is above `last_step`. 0 when the file does not begin with a version event.
size_t KeepEvents(std::string_view content, int64_t last_step);

}  // namespace nsa::train
