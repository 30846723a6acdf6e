// Runs nsa-worker on this machine for a short answer: `validate --data`, `data`, `report --prompt`.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/interrupt.h"
#include "common/run/process.h"
#include "google/protobuf/message.h"

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

// Called with each line that the program writes while it runs.
using OnLine = std::function<void(const std::string&)>;

struct Finished {
  ExitStatus exit;
  std::string output;  // standard output and standard error
};

// Runs `program` to its end. NotFound if it is not there; Cancelled when interrupted, and it is
// killed.
absl::StatusOr<Finished> RunProgram(const std::string& program,
                                    const std::vector<std::string>& arguments, Interrupt* interrupt,
                                    const OnLine& on_line = nullptr);

// "nsa-worker ended with exit code 3", "nsa-worker was ended by signal 9".
std::string EndOf(const std::string& program, const ExitStatus& exit);

// RunProgram(), and returns what it wrote. NotFound if the program is not there; InvalidArgument
// with what it wrote if its exit code is not 0; Cancelled when interrupted, and the program is
// killed.
absl::StatusOr<std::string> RunWorker(const std::string& program,
                                      const std::vector<std::string>& arguments,
                                      Interrupt* interrupt, const OnLine& on_line = nullptr);

// The same for an answer in JSON, which is the only line that begins with a brace: reads it into
// `answer`. Other lines are the program's log. InvalidArgument with what it wrote if there is no
// such line.
absl::Status AskWorker(const std::string& program, const std::vector<std::string>& arguments,
                       Interrupt* interrupt, google::protobuf::Message* answer,
                       const OnLine& on_line = nullptr);

// nsa-worker, or another program, in the folder of this program.
std::string WorkerBesideThisProgram(const std::string& name = "nsa-worker");

}  // namespace nsa::client
