// Files that survive power loss. Their hash is computed while they are written.
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

namespace nsa::train {

// A file being written. Errors name the file; ResourceExhausted when the disk is full.
class DurableFile {
 public:
  // Creates `name` in `folder`; an existing file of that name is removed first.
  static absl::StatusOr<std::unique_ptr<DurableFile>> Create(const Folder& folder,
                                                             const std::string& name);

  // Closes the file. An unfinished file is left as it is.
  ~DurableFile();

  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status Append(std::string_view text) {
    return Append(std::as_bytes(std::span(text.data(), text.size())));
  }

  // Calls fsync. Returns the file's name, length and XXH3-128 hash.
  absl::StatusOr<v1::CheckpointFile> Finish();

 private:
  struct State;
  explicit DurableFile(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace nsa::train
