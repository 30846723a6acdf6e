// Runs nsa-worker on this machine for a short answer: `validate --data`, `report --prompt`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/interrupt.h"

namespace nsa::client {

// A new folder, removed with all that is in it.
class ScratchFolder {
 public:
  static absl::StatusOr<ScratchFolder> Make();
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit ScratchFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

// Runs `program` and returns what it wrote. NotFound if the program is not there; InvalidArgument
// with what it wrote if its exit code is not 0; Cancelled when interrupted, and the program is
// killed.
absl::StatusOr<std::string> RunWorker(const std::string& program,
                                      const std::vector<std::string>& arguments,
                                      Interrupt* interrupt);

// nsa-worker in the folder of this program.
std::string WorkerBesideThisProgram();

}  // namespace nsa::client
