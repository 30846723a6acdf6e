// nsactl generate: text that a trained model writes. nsa-worker beside this program computes it, on
// this machine; a coordinator is asked only for the out_dir of a job.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/model/device.h"
#include "client/commands/model/find_model.h"
#include "client/commands/model/number_flag.h"
#include "client/commands/model/run_program.h"
#include "client/connect/local/input_file.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

constexpr int64_t kMaxTokens = 200;

struct GenerateFlags {
  std::string device = kDefaultDevice;
  std::string target, prompt, file, temperature, top_p;
  int64_t top_k = 0, seed = 1, max_tokens = kMaxTokens;
  int context = 0;
};

absl::Status CheckDraw(const GenerateFlags& flags) {
  NSA_RETURN_IF_ERROR(CheckTemperature(flags.temperature));
  return CheckNumber(
      "--top-p", flags.top_p, [](double x) { return x > 0 && x <= 1; }, "above 0, at most 1");
}

// The arguments of the worker.
std::vector<std::string> WorkerWords(const std::string& model, const GenerateFlags& flags) {
  std::vector<std::string> words = {"sample",
                                    model,
                                    absl::StrCat("--max-tokens=", flags.max_tokens),
                                    absl::StrCat("--top-k=", flags.top_k),
                                    absl::StrCat("--seed=", flags.seed),
                                    absl::StrCat("--context=", flags.context)};
  if (!flags.prompt.empty()) words.push_back("--prompt=" + flags.prompt);
  if (!flags.file.empty()) words.push_back("--prompt-file=" + flags.file);
  if (!flags.temperature.empty()) words.push_back("--temperature=" + flags.temperature);
  if (!flags.top_p.empty()) words.push_back("--top-p=" + flags.top_p);
  return words;
}

absl::StatusOr<ExitCode> Generate(Session& session, const GenerateFlags& flags) {
  NSA_RETURN_IF_ERROR(RefuseStructured(session, "generate"));
  NSA_RETURN_IF_ERROR(CheckDevice(flags.device));
  NSA_RETURN_IF_ERROR(CheckDraw(flags));
  if (!flags.file.empty() && flags.file != "-") {
    NSA_RETURN_IF_ERROR(CheckInputFile("--file", flags.file));
  }
  NSA_ASSIGN_OR_RETURN(const std::string model, FindModel(session, flags.target));
  return RunModelInForeground(session, flags.device, WorkerWords(model, flags));
}

}  // namespace

void AddGenerate(Cli* cli) {
  const auto flags = std::make_shared<GenerateFlags>();
  Options options = cli->Add(
      {.name = "generate",
       .what = "Print text that a trained model writes",
       .group = "Models",
       .more = "Loads the model and computes on this machine, by nsa-worker or nsa-worker-cuda "
               "beside this program. The text\nappears as it is written.",
       .examples = "nsactl generate ./out --prompt \"The cell\"\n"
                   "nsactl generate my-job --prompt \"The cell\" --device cuda\n"
                   "nsactl generate ./out/checkpoints/step-00005000 --file start.txt "
                   "--temperature 0.5 --top-p 0.9 --max-tokens 500\n"
                   "echo \"To be\" | nsactl generate ./out --file - --seed 7",
       .run = [flags](Session& session) { return Generate(session, *flags); }});
  options.Argument("CHECKPOINT|JOB", &flags->target, kModelArgument);
  options.Exclude(options.Text("--prompt", "TEXT", &flags->prompt, "Text to continue"),
                  options.Text("--file", "FILE", &flags->file,
                               "File with the text to continue; - reads standard input"));
  options.Text("--temperature", "X", &flags->temperature,
               "Divides the logits; 0 takes the likeliest token (default: 0.8)");
  options.Number("--top-k", &flags->top_k, {.least = 0},
                 "Draw from the N likeliest tokens only (default: 0, from all)");
  options.Text("--top-p", "P", &flags->top_p,
               "Draw from the likeliest tokens only that together have this probability "
               "(default: 1)");
  options.Number("--seed", &flags->seed, {}, "The same seed writes the same text (default: 1)");
  options.Number("--max-tokens", &flags->max_tokens, {.least = 0},
                 absl::StrCat("Tokens to write (default: ", kMaxTokens, ")"));
  options.Number("--context", &flags->context, {.least = 0, .most = 1'048'576},
                 "Tokens that the model sees at most (default: 0, the job's train.seq_len)");
  AddDevice(&options, &flags->device);
}

}  // namespace nsa::client
