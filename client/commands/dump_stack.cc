// nsactl dump-stack: where every thread of every rank is.
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli.h"
#include "client/commands/saved_stacks.h"
#include "client/show/document.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

struct DumpFlags {
  std::string job;
  std::string file;
  int rank = -1;
  bool saved = false;
  int64_t saved_id = 0;  // 0: list them
};

std::string FormatDump(const v1::StackDump& dump) {
  std::string text = absl::StrFormat("=== rank %d, pid %d on %s (%.2f s)\n", dump.rank(),
                                     dump.pid(), dump.node(), dump.seconds());
  const auto add = [&text](const std::string& part) {
    absl::StrAppend(&text, part, part.empty() || part.back() == '\n' ? "" : "\n");
  };
  if (!dump.error().empty()) add("incomplete: " + dump.error());
  add(dump.status());
  add(dump.stacks());
  return text;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (file << text && file.flush()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": cannot be written; name a file that can with -o"));
}

absl::StatusOr<ExitCode> DumpStack(Session& session, const DumpFlags& flags) {
  if (flags.saved) return ShowSavedStacks(session, flags.job, flags.saved_id);
  v1::DumpStackRequest request;
  request.set_job(flags.job);
  request.set_rank(flags.rank);
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::DumpStackResponse response,
                       client->Call<v1::DumpStackResponse>(request, {.timeout = kDumpTimeout}));
  std::string text;
  if (session.structured()) {
    const auto document = ToJson(response);
    text = session.flags().format == Format::kYaml ? YamlText(document) : JsonText(document);
  } else {
    for (const v1::StackDump& dump : response.dumps())
      absl::StrAppend(&text, FormatDump(dump), "\n");
  }
  if (flags.file.empty()) {
    session.out() << text;
  } else {
    NSA_RETURN_IF_ERROR(WriteFile(flags.file, text));
    session.Note(absl::StrCat("stacks of ", response.dumps_size(),
                              response.dumps_size() == 1 ? " rank" : " ranks", " written to ",
                              flags.file));
  }
  int failed = 0;
  for (const v1::StackDump& dump : response.dumps()) {
    if (dump.stacks().empty()) ++failed;
  }
  if (failed == 0) return ExitCode::kOk;
  return absl::InternalError(absl::StrCat("dump-stack: ", failed, " of ", response.dumps_size(),
                                          " ranks gave no stacks; see 'incomplete' above"));
}

}  // namespace

void AddDumpStack(Cli* cli) {
  const auto flags = std::make_shared<DumpFlags>();
  Options options = cli->Add(
      {.name = "dump-stack",
       .what = "Show the stacks of all threads of a job's ranks, and what each rank is doing",
       .group = "Jobs",
       .more = "Taken from outside the processes, so that a stopped or stuck rank is shown too. "
               "Training goes on.\n-o names a file here; --output json|yaml chooses the format.",
       .examples = "nsactl dump-stack demo\n"
                   "nsactl dump-stack demo --rank 1\n"
                   "nsactl dump-stack demo -o stacks.txt\n"
                   "nsactl dump-stack demo --saved",
       .run = [flags](Session& session) { return DumpStack(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Rank(&flags->rank, "Only this rank (default all)");
  options.Text("-o,--file", "FILE", &flags->file, "Write to this file");
  options.OptionalNumber("--saved", "[ID]", &flags->saved, &flags->saved_id,
                         "Show what was saved when the job stood still: all with the newest, or "
                         "this one");
}

}  // namespace nsa::client
