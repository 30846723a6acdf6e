// Files that survive power loss, hashed as they are written.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/folder.h"

namespace nsa {

// A file being written. Errors name the file; ResourceExhausted when the disk is full.
class DurableFile {
 public:
  // Creates `name` in `folder`; what had that name is removed.
  static absl::StatusOr<std::unique_ptr<DurableFile>> Create(const Folder& folder,
                                                             const std::string& name);

  // Closes; a file that was not finished stays as it is.
  ~DurableFile();

  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status Append(std::string_view text) {
    return Append(std::as_bytes(std::span(text.data(), text.size())));
  }

  // fsyncs; name, length and XXH3-128 of what was written.
  absl::StatusOr<v1::CheckpointFile> Finish();

 private:
  struct State;
  explicit DurableFile(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace nsa
