// nsactl dump-stack: prints the stacks of every thread of every rank of jobs.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli.h"
#include "client/commands/saved_stacks.h"
#include "client/connect/act_on_jobs.h"
#include "client/connect/each_job.h"
#include "client/connect/local/output_file.h"
#include "client/show/document.h"
#include "client/show/job_text.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

struct DumpFlags {
  JobSelection chosen;
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

// What the dumps of all jobs become.
struct Output {
  std::string text;
  nlohmann::ordered_json documents = nlohmann::ordered_json::array();
  int ranks = 0;
};

absl::Status DumpOne(Client* client, const DumpFlags& flags, const std::string& name,
                     Output* output) {
  v1::DumpStackRequest request;
  request.set_job(name);
  request.set_rank(flags.rank);
  std::string heading;
  nlohmann::ordered_json document;
  if (flags.chosen.several()) {
    NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(name, v1::JOB_USE_ACTIVE));
    request.set_job(job.id());
    heading = absl::StrCat("##### ", Title(job), "\n");
    document = {{"job_id", job.id()}, {"job_name", job.name()}};
  }
  NSA_ASSIGN_OR_RETURN(const v1::DumpStackResponse response,
                       client->Call<v1::DumpStackResponse>(request, {.timeout = kDumpTimeout}));
  output->text += heading;
  document.update(ToJson(response));
  output->documents.push_back(std::move(document));
  output->ranks += response.dumps_size();
  int failed = 0;
  for (const v1::StackDump& dump : response.dumps()) {
    absl::StrAppend(&output->text, FormatDump(dump), "\n");
    if (dump.stacks().empty()) ++failed;
  }
  if (failed == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("dump-stack: ", failed, " of ", response.dumps_size(),
                                          " ranks gave no stacks; see 'incomplete' above"));
}

std::string TextOf(Session& session, const DumpFlags& flags, Output output) {
  if (!session.structured()) return output.text;
  nlohmann::ordered_json document;
  if (flags.chosen.several()) {
    document["jobs"] = std::move(output.documents);
  } else if (!output.documents.empty()) {
    document = std::move(output.documents[0]);
  } else {
    return "";  // the only job was refused
  }
  return session.flags().format == Format::kYaml ? YamlText(document) : JsonText(document);
}

absl::StatusOr<ExitCode> DumpStack(Session& session, const DumpFlags& flags) {
  NSA_RETURN_IF_ERROR(CheckChosen(flags.chosen));
  if (flags.saved && flags.chosen.several()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--saved: ",
        !flags.chosen.matches() ? Count(static_cast<int64_t>(flags.chosen.jobs.size()), "job")
                                : "the jobs of --state and --label",
        " (at most 1); name one job"));
  }
  if (flags.saved && (!flags.file.empty() || flags.rank >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.file.empty() ? "--rank" : "-o",
                     ": set beside --saved (for new stacks only); leave it out, or redirect the "
                     "standard output"));
  }
  if (flags.saved) return ShowSavedStacks(session, flags.chosen.jobs.front(), flags.saved_id);
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> jobs,
                       ChosenJobs(session, "dump-stack", flags.chosen, v1::JOB_USE_ACTIVE,
                                  /*ask=*/false));
  Output output;
  const absl::Status status = ForEachJob("dump-stack", jobs, [&](const std::string& name) {
    return DumpOne(client, flags, name, &output);
  });
  const int ranks = output.ranks;
  const std::string text = TextOf(session, flags, std::move(output));
  if (flags.file.empty()) {
    session.out() << text << std::flush;
  } else if (ranks > 0) {
    NSA_RETURN_IF_ERROR(WriteOutputFile(flags.file, text));
    session.Note(absl::StrCat("stacks of ", Count(ranks, "rank"), " written to ", flags.file));
  }
  NSA_RETURN_IF_ERROR(status);
  return ExitCode::kOk;
}

}  // namespace

void AddDumpStack(Cli* cli) {
  const auto flags = std::make_shared<DumpFlags>();
  Options options = cli->Add(
      {.name = "dump-stack",
       .what = "Show the stacks of all threads of jobs' ranks, and what each rank is doing",
       .group = "Jobs",
       .more =
           "The stacks are read from outside the processes, so a stopped or stuck rank is shown "
           "too. Training goes on.\nHere -o names a file; --output json|yaml chooses the format. "
           "With "
           "several JOBs each has a\nheading; the exit code is not 0 if one failed.",
       .examples = "nsactl dump-stack demo\n"
                   "nsactl dump-stack demo --rank 1\n"
                   "nsactl dump-stack demo -o stacks.txt\n"
                   "nsactl dump-stack demo --saved\n"
                   "nsactl dump-stack --state training",
       .run = [flags](Session& session) { return DumpStack(session, *flags); }});
  options.OptionalArguments("JOB", &flags->chosen.jobs, "Job ids or names");
  options.Choose(&flags->chosen.filter);
  options.Rank(&flags->rank, "Only this rank (default: all)");
  options.Text("-o,--file", "FILE", &flags->file, "Write to this file");
  options.OptionalNumber("--saved", "[ID]", &flags->saved, &flags->saved_id,
                         "Show what was saved when the job stood still: all with the newest, or "
                         "this one");
}

}  // namespace nsa::client
