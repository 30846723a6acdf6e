// A folder that is held open. When a symbolic link or another folder replaces it at its path, the
// replacement is neither written nor emptied. A worker writes everything in out_dir through this
// class.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa::train {

// Names are names of entries of the folder, without a slash. No symbolic link is followed, and no
// function waits for a pipe: FailedPrecondition when a link or a pipe is found in place of a file
// or a folder. Copies refer to the same open folder. Thread-safe.
class Folder {
 public:
  // No folder: valid() is false, and no other function may be called.
  Folder() = default;

  // Opens the folder. Creates it and its parents, durably, if they do not exist. `path` may lead
  // through links.
  static absl::StatusOr<Folder> Make(const std::filesystem::path& path);

  // Opens the folder `name` in this folder. Creates it if it does not exist; the next Sync() makes
  // that durable.
  absl::StatusOr<Folder> MakeFolder(const std::string& name) const;

  bool valid() const { return state_ != nullptr; }

  // The path at which it was opened; for messages.
  const std::filesystem::path& path() const;

  // A path that leads to this folder as long as it is open, even if path() no longer does. For
  // reading.
  std::filesystem::path fixed_path() const;

  // FailedPrecondition when path() no longer leads to this folder.
  absl::Status CheckInPlace() const;

  // FailedPrecondition when `name` is no longer the file or folder that is open as `fd`.
  absl::Status CheckInPlace(const std::string& name, int fd) const;

  // Opens a file with the flags of open(2).
  absl::StatusOr<Fd> Open(const std::string& name, int flags) const;

  // Creates a file and opens it for writing. An existing file of that name is removed first.
  absl::StatusOr<Fd> Create(const std::string& name) const;

  // Returns the content of a file.
  absl::StatusOr<std::string> Read(const std::string& name) const;

  // As WriteFileAtomically() in common/run/atomic_file.h.
  absl::Status WriteAtomically(const std::string& name, std::string_view content) const;

  // Whether an entry of that name exists; a link counts.
  bool Has(const std::string& name) const;

  // The names of all entries, in no particular order.
  absl::StatusOr<std::vector<std::string>> Names() const;

  // Renames `from` to `to`. An existing file or empty folder called `to` is replaced.
  absl::Status Rename(const std::string& from, const std::string& to) const;

  // Renames the folder `from` to `to`, durably. An existing folder `to` is renamed to `from`, or,
  // on file systems that cannot exchange names, to `from`-replaced.
  absl::Status Publish(const std::string& from, const std::string& to) const;

  // Makes `name` a symbolic link to `target`, atomically and durably. An existing link or file of
  // that name is replaced.
  absl::Status PointLink(const std::string& name, const std::string& target) const;

  // Removes a file, or a folder with everything in it. Links are removed, not their targets. It is
  // no error when nothing has that name.
  absl::Status RemoveAll(const std::string& name) const;

  // Calls fsync on the folder, which makes new names and renames durable.
  absl::Status Sync() const;

 private:
  struct State;
  explicit Folder(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  int fd() const;

  std::shared_ptr<const State> state_;
};

}  // namespace nsa::train
