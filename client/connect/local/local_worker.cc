#include "client/connect/local/local_worker.h"

#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/data_environment.h"
#include "common/run/process.h"
#include "google/protobuf/util/json_util.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLook = absl::Milliseconds(20);

// Passes on the lines of a file that grows.
class Lines {
 public:
  Lines(fs::path file, const OnLine& on_line) : file_(std::move(file)), on_line_(on_line) {}

  void TellNew() {
    if (!on_line_) return;
    std::ifstream in(file_, std::ios::binary);
    in.seekg(told_);
    for (std::string line; std::getline(in, line) && !in.eof();) {
      told_ += std::ssize(line) + 1;
      on_line_(line);
    }
  }

 private:
  const fs::path file_;
  const OnLine& on_line_;
  int64_t told_ = 0;  // bytes
};

// Waits for the process; kills it when interrupted.
absl::StatusOr<ExitStatus> Wait(const ProcessIdentity& process, Interrupt* interrupt,
                                Lines* lines) {
  while (true) {
    lines->TellNew();
    NSA_ASSIGN_OR_RETURN(const std::optional<ExitStatus> exit, TryReap(process.pid));
    if (exit.has_value()) return *exit;
    if (interrupt->SleepFor(kLook)) continue;
    SignalProcess(process, SIGKILL).IgnoreError();
    while (true) {
      NSA_ASSIGN_OR_RETURN(const std::optional<ExitStatus> killed, TryReap(process.pid));
      if (killed.has_value()) return absl::CancelledError("interrupted while nsa-worker ran");
    }
  }
}

}  // namespace

absl::StatusOr<ScratchFolder> ScratchFolder::Make() {
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "nsactl-XXXXXX").string();
  if (error) return absl::ErrnoToStatus(error.value(), "TMPDIR: no folder for files; set it");
  if (mkdtemp(name.data()) == nullptr) return absl::ErrnoToStatus(errno, name);
  return ScratchFolder(name);
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept : path_(std::move(other.path_)) {
  other.path_.clear();
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
}

absl::StatusOr<Finished> RunProgram(const std::string& program,
                                    const std::vector<std::string>& arguments, Interrupt* interrupt,
                                    const OnLine& on_line) {
  NSA_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  const fs::path output = scratch.path() / "output";
  std::vector<std::string> argv = {program};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  NSA_ASSIGN_OR_RETURN(const ProcessIdentity process,
                       Spawn({.argv = argv,
                              .environment = FilterEnvironment(WithDataEnvironment(
                                  {"PATH", "HOME", "NSA_STATE_DIR", "LD_LIBRARY_PATH", "LANG",
                                   "HF_HOME", "HF_TOKEN_PATH"})),
                              .output = output}));
  Lines lines(output, on_line);
  NSA_ASSIGN_OR_RETURN(const ExitStatus exit, Wait(process, interrupt, &lines));
  NSA_ASSIGN_OR_RETURN(std::string wrote, ReadWholeFile(output));
  return Finished{exit, std::move(wrote)};
}

std::string EndOf(const std::string& program, const ExitStatus& exit) {
  const std::string name = fs::path(program).filename();
  if (exit.signal != 0) return absl::StrCat(name, " was ended by signal ", exit.signal);
  return absl::StrCat(name, " ended with exit code ", exit.code);
}

absl::StatusOr<std::string> RunWorker(const std::string& program,
                                      const std::vector<std::string>& arguments,
                                      Interrupt* interrupt, const OnLine& on_line) {
  NSA_ASSIGN_OR_RETURN(Finished finished, RunProgram(program, arguments, interrupt, on_line));
  if (finished.exit.code == 0) return std::move(finished.output);
  absl::string_view wrote = absl::StripAsciiWhitespace(finished.output);
  if (on_line) wrote = wrote.substr(wrote.rfind('\n') + 1);  // the others were told
  const std::string why =
      absl::StrCat(wrote, wrote.empty() ? "" : " ", "(", EndOf(program, finished.exit), ")");
  // A signal, as of the kernel that runs out of memory, is no fault of what was asked.
  return finished.exit.signal != 0 ? absl::InternalError(why) : absl::InvalidArgumentError(why);
}

absl::Status AskWorker(const std::string& program, const std::vector<std::string>& arguments,
                       Interrupt* interrupt, google::protobuf::Message* answer,
                       const OnLine& on_line) {
  const std::string refusal = fs::path(program).filename().string() + ": ";
  const auto tell_log = [&](const std::string& line) {
    // Neither the answer nor the refusal, which is the error.
    if (!line.starts_with('{') && !line.starts_with(refusal)) on_line(line);
  };
  NSA_ASSIGN_OR_RETURN(const std::string said, RunWorker(program, arguments, interrupt,
                                                         on_line ? OnLine(tell_log) : nullptr));
  for (const absl::string_view line : absl::StrSplit(said, '\n')) {
    if (!absl::StartsWith(line, "{")) continue;
    if (google::protobuf::util::JsonStringToMessage(std::string(line), answer).ok()) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(absl::StripAsciiWhitespace(said), " (",
                                                 fs::path(program).filename().string(),
                                                 " ended with exit code 0)"));
}

std::string WorkerBesideThisProgram(const std::string& name) {
  std::error_code error;
  return (fs::read_symlink("/proc/self/exe", error).parent_path() / name).string();
}

}  // namespace nsa::client
