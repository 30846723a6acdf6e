#include "client/commands/model/model_server.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/connect/local/local_worker.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/data_environment.h"

namespace nsa::client {
namespace {

constexpr absl::Duration kLookForUrl = absl::Milliseconds(20);

// The address in "serving tiny, step 2, at http://127.0.0.1:8000/v1 (…"; empty if it is not there.
std::string UrlIn(const std::string& said) {
  constexpr std::string_view kBefore = ", at http://", kBehind = "/v1 (";
  const size_t end = said.find(kBehind);
  const size_t begin = said.rfind(kBefore, end);
  if (end == std::string::npos || begin == std::string::npos) return "";
  const size_t url = begin + kBefore.find("http");
  return said.substr(url, end - url);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelServer>> ModelServer::Start(const std::string& program,
                                                                const std::string& device,
                                                                const std::string& model,
                                                                int context, Interrupt* interrupt) {
  NSA_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  const std::filesystem::path output = scratch.path() / "output";
  std::unique_ptr<ModelServer> server(new ModelServer());
  NSA_ASSIGN_OR_RETURN(server->process_,
                       Spawn({.argv = {program, "serve", model, "--listen=127.0.0.1:0",
                                       absl::StrCat("--context=", context), "--slots=1",
                                       "--device=" + device, absl::StrCat("--parent=", getpid())},
                              .environment = FilterEnvironment(WithDataEnvironment(
                                  {"PATH", "HOME", "NSA_STATE_DIR", "LD_LIBRARY_PATH", "LANG",
                                   "CUDA_VISIBLE_DEVICES"})),
                              .output = output}));
  NSA_RETURN_IF_ERROR(server->AwaitUrl(program, output, interrupt));
  return server;
}

absl::Status ModelServer::AwaitUrl(const std::string& program, const std::filesystem::path& output,
                                   Interrupt* interrupt) {
  while (true) {
    NSA_ASSIGN_OR_RETURN(const std::optional<ExitStatus> exit, TryReap(process_.pid));
    const std::string said = ReadWholeFile(output).value_or("");
    if (exit.has_value()) {
      process_ = {};
      return absl::FailedPreconditionError(
          absl::StrCat(absl::StripAsciiWhitespace(said), " (", EndOf(program, *exit), ")"));
    }
    url_ = UrlIn(said);
    if (!url_.empty()) return absl::OkStatus();
    if (!interrupt->SleepFor(kLookForUrl)) return absl::CancelledError("interrupted");
  }
}

ModelServer::~ModelServer() {
  if (process_.pid == 0) return;
  SignalProcess(process_, SIGTERM).IgnoreError();
  while (waitpid(process_.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace nsa::client
