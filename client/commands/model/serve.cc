// nsactl serve: a trained model for OpenAI clients of this machine. nsa-worker beside this program
// computes; a coordinator is asked only for the out_dir of a job.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/model/run_program.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"

namespace nsa::client {
namespace {

struct ServeFlags {
  std::string target, listen = "127.0.0.1:8000";
  int context = 0;
};

// Ids and names of jobs have no slash.
bool IsPath(const std::string& target) {
  return target.find('/') != std::string::npos || target == "." || target == "..";
}

// The checkpoint folder or out_dir that CHECKPOINT|JOB means on this machine.
absl::StatusOr<std::string> FindModel(Session& session, const std::string& target) {
  if (LookUpNamed(target).has_value()) return target;
  if (IsPath(target)) {
    return absl::NotFoundError(absl::StrCat(
        target, ": no checkpoint (a checkpoint folder, an out_dir or a job); see 'nsactl list'"));
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(target));
  const std::string& out_dir = job.spec().train().out_dir();
  if (LookUpNamed(out_dir).has_value()) return out_dir;
  return absl::NotFoundError(
      absl::StrCat(target, ": no checkpoint in ", out_dir,
                   " on this machine; run nsactl where the job wrote them, or wait for the first"));
}

absl::StatusOr<ExitCode> Serve(Session& session, const ServeFlags& flags) {
  if (session.structured()) {
    return absl::InvalidArgumentError("-o: json or yaml (table); serve prints plain text");
  }
  NSA_ASSIGN_OR_RETURN(const std::string model, FindModel(session, flags.target));
  return RunWorkerInForeground(session, {"--serve=" + model, "--listen=" + flags.listen,
                                         absl::StrCat("--context=", flags.context)});
}

}  // namespace

void AddServe(Cli* cli) {
  const auto flags = std::make_shared<ServeFlags>();
  Options options = cli->Add(
      {.name = "serve",
       .what = "Let OpenAI clients of this machine use a trained model",
       .group = "Models",
       .more = "Loads the model and answers POST /v1/completions on the CPU of this machine, by "
               "nsa-worker beside this\nprogram, until Ctrl-C. No password is asked, so only "
               "loopback addresses are listened on.",
       .examples = "nsactl serve ./out\n"
                   "nsactl serve my-job --listen 127.0.0.1:8001\n"
                   "curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' "
                   "-d '{\"prompt\": \"The cell\"}'",
       .run = [flags](Session& session) { return Serve(session, *flags); }});
  options.Argument("CHECKPOINT|JOB", &flags->target,
                   "A checkpoint folder, an out_dir (its newest valid checkpoint), or a job whose "
                   "out_dir is on this machine");
  options.Text("--listen", "HOST:PORT", &flags->listen,
               "127.0.0.1 or localhost, with a port; 0 takes a free one (default: 127.0.0.1:8000)");
  options.Number("--context", &flags->context, {.least = 0, .most = 1'048'576},
                 "Tokens that the model sees at most; 0: the job's train.seq_len");
}

}  // namespace nsa::client
