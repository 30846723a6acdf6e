// nsactl serve: a trained model for OpenAI clients of this machine. nsa-worker beside this program
// computes; a coordinator is asked only for the out_dir of a job.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/model/device.h"
#include "client/commands/model/find_model.h"
#include "client/commands/model/run_program.h"
#include "common/base/host_port.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct ServeFlags {
  std::string device = kDefaultDevice;
  std::string target, listen = "127.0.0.1:8000";
  int context = 0, slots = 0;
};

absl::StatusOr<ExitCode> Serve(Session& session, const ServeFlags& flags) {
  NSA_RETURN_IF_ERROR(RefuseStructured(session, "serve"));
  NSA_RETURN_IF_ERROR(CheckDevice(flags.device));
  NSA_RETURN_IF_ERROR(ParseLoopback("--listen", flags.listen).status());
  NSA_ASSIGN_OR_RETURN(const std::string model, FindModel(session, flags.target));
  return RunModelInForeground(
      session, flags.device,
      {"serve", model, "--listen=" + flags.listen, absl::StrCat("--context=", flags.context),
       absl::StrCat("--slots=", flags.slots)});
}

}  // namespace

void AddServe(Cli* cli) {
  const auto flags = std::make_shared<ServeFlags>();
  Options options = cli->Add(
      {.name = "serve",
       .what = "Let OpenAI clients of this machine use a trained model",
       .group = "Models",
       .more =
           "Loads the model and answers POST /v1/completions and /v1/chat/completions on this "
           "machine, by nsa-worker or\nnsa-worker-cuda beside this program, until Ctrl-C. No "
           "password is asked, so only 127.0.0.1 is listened on\n(not ::1); from another machine: "
           "ssh -L 8001:127.0.0.1:8000 HOST, then http://127.0.0.1:8001.",
       .examples = "nsactl serve ./out\n"
                   "nsactl serve my-job --listen 127.0.0.1:8001 --device cuda\n"
                   "curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' "
                   "-d '{\"prompt\": \"The cell\"}'",
       .run = [flags](Session& session) { return Serve(session, *flags); }});
  options.Argument("CHECKPOINT|JOB", &flags->target, kModelArgument);
  options.Text(
      "--listen", "ADDRESS", &flags->listen,
      "127.0.0.1:PORT or localhost:PORT; port 0 takes a free one (default: 127.0.0.1:8000)");
  options.Number("--context", &flags->context, {.least = 0, .most = 1'048'576},
                 "Tokens that the model sees at most (default: 0, the job's train.seq_len)");
  options.Number(
      "--slots", &flags->slots, {.least = 0, .most = 64},
      "Choices of all requests that are written at the same time (default: 0, up to 8, as "
      "many as half of the free memory has caches for)");
  AddDevice(&options, &flags->device);
}

}  // namespace nsa::client
