// A folder that is held open, so that whatever is put in place of its path meanwhile, a symbolic
// link or another folder, is neither written nor emptied. Everything a worker keeps in out_dir goes
// through one of these.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

// Names are those of entries of the folder, without a slash. No symbolic link is followed, and
// nothing waits for a pipe: FailedPrecondition where one lies in the place of a file or a folder.
// Copies are the same open folder. Thread-safe.
class Folder {
 public:
  // None: valid() is false, and nothing else may be called.
  Folder() = default;

  // Makes the folder and its parents where they are absent, durably, and opens it. The way to it
  // may lead through links.
  static absl::StatusOr<Folder> Make(const std::filesystem::path& path);

  // Makes `name` in this folder where it is absent, and opens it. Durable with the next Sync().
  absl::StatusOr<Folder> MakeFolder(const std::string& name) const;

  bool valid() const { return state_ != nullptr; }

  // Where it was opened; for messages.
  const std::filesystem::path& path() const;

  // A path that leads to this folder while it is open, whatever lies at path(). For reading.
  std::filesystem::path fixed_path() const;

  // FailedPrecondition when path() leads to something else by now.
  absl::Status CheckInPlace() const;

  // FailedPrecondition when `name` is another file by now than the one that is open as `fd`.
  absl::Status CheckInPlace(const std::string& name, int fd) const;

  // Opens a file with the flags of open(2).
  absl::StatusOr<Fd> Open(const std::string& name, int flags) const;

  // Opens a new file for writing; what had that name is removed.
  absl::StatusOr<Fd> Create(const std::string& name) const;

  // The content of a file.
  absl::StatusOr<std::string> Read(const std::string& name) const;

  // As in common/run/atomic_file.h.
  absl::Status WriteAtomically(const std::string& name, std::string_view content) const;

  // Whether something has that name, be it a link.
  bool Has(const std::string& name) const;

  // All names, in no order.
  absl::StatusOr<std::vector<std::string>> Names() const;

  // Gives `from` the name `to`; a file or an empty folder of that name is replaced.
  absl::Status Rename(const std::string& from, const std::string& to) const;

  // Gives the folder `from` the name `to`, durably; what had that name before has the name `from`
  // afterwards.
  absl::Status Publish(const std::string& from, const std::string& to) const;

  // Makes `name` a symbolic link to `target`, atomically and durably, whatever it was before.
  absl::Status PointLink(const std::string& name, const std::string& target) const;

  // Removes a file, or a folder with everything in it; links go, and what they lead to stays.
  absl::Status RemoveAll(const std::string& name) const;

  // Makes names and renames durable.
  absl::Status Sync() const;

 private:
  struct State;
  explicit Folder(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  int fd() const;

  std::shared_ptr<const State> state_;
};

}  // namespace nsa
