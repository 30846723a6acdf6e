// The stacks that the coordinator saves when a job makes no progress:
// <state_dir>/dumps/<job>.<id>.gen-000001.20261122T074500Z.txt. The ids of a job count from 1. The
// first line of a file says why it was saved; all ranks follow. The newest 20 of each job are kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::server {

// Thread-safe; the lock is held while a file is written.
class StackStore {
 public:
  static constexpr size_t kKept = 20;

  StackStore(std::filesystem::path dir, const Clock& clock) : dir_(std::move(dir)), clock_(clock) {}

  // Saves the stacks of a job's ranks. Fails when the file cannot be written.
  struct Saved {
    int64_t id = 0;
    std::filesystem::path file;
  };
  absl::StatusOr<Saved> Save(const std::string& job_id, int64_t generation, const std::string& why,
                             const std::vector<v1::StackDump>& dumps);

  // What is saved of a job, oldest first.
  std::vector<v1::SavedStacks> List(const std::string& job_id) const;

  // One entry with its text; `id` 0 means the newest. NotFound. A text of more than 8 MiB is cut,
  // and its end then names the file.
  absl::StatusOr<v1::GetSavedStacksResponse> Read(const std::string& job_id, int64_t id) const;

  // Removes everything that is saved of a job. Unavailable, with the file, when that fails.
  absl::Status Remove(const std::string& job_id);

 private:
  struct File {
    std::filesystem::path path;
    int64_t id = 0;
    int64_t generation = 0;
    absl::Time saved;
  };
  static std::optional<File> Parse(const std::string& job_id, const std::filesystem::path& path);
  static v1::SavedStacks Describe(const File& file);
  std::vector<File> Files(const std::string& job_id) const;

  const std::filesystem::path dir_;
  const Clock& clock_;
  Mutex mutex_;  // an id is being given to a new file
};

}  // namespace nsa::server
