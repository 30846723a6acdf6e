// nsactl needle: how often a trained model finds what is hidden in its context.
// nsa-worker beside this program computes, on this machine; a coordinator is asked only for the
// out_dir of a job.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/commands/model/device.h"
#include "client/commands/model/find_model.h"
#include "client/commands/model/needle_text.h"
#include "client/connect/local/output_file.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct NeedleFlags {
  std::string device = kDefaultDevice;
  std::string target, csv;
  std::vector<int64_t> lengths;
  int depths = 5, trials = 10;
  NeedleText text;
};

absl::StatusOr<ExitCode> Needle(Session& session, const NeedleFlags& flags) {
  NSA_RETURN_IF_ERROR(CheckDevice(flags.device));
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> text, NeedleTextWords(flags.text));
  if (!flags.csv.empty()) NSA_RETURN_IF_ERROR(CheckOutputFile("--csv", flags.csv));
  NSA_ASSIGN_OR_RETURN(const std::string model, FindModel(session, flags.target));
  std::vector<std::string> words = {"needle", model, absl::StrCat("--depths=", flags.depths),
                                    absl::StrCat("--trials=", flags.trials)};
  words.insert(words.end(), text.begin(), text.end());
  if (!flags.lengths.empty()) words.push_back("--lengths=" + absl::StrJoin(flags.lengths, ","));
  if (!flags.csv.empty()) words.push_back("--output=" + flags.csv);
  return MeasureModelInForeground(session, flags.device, words);
}

}  // namespace

void AddNeedle(Cli* cli) {
  const auto flags = std::make_shared<NeedleFlags>();
  Options options = cli->Add(
      {.name = "needle",
       .what = "Measure whether a trained model finds what is hidden in a long context",
       .group = "Models",
       .more = "Hides a pass key of five digits in irrelevant text, asks for it at the end, and "
               "counts how often the model answers\nwith exactly that key, by the length of the "
               "context and by where the key is; --task hides something else. Computed\non this "
               "machine, by nsa-worker or nsa-worker-cuda beside this program. A model learns the "
               "question from documents of\n`nsactl data needle` with the same --task.",
       .examples = "nsactl needle my-job\n"
                   "nsactl needle ./out --lengths 1024,4096,16384 --depths 11 --trials 20 --csv "
                   "needle.csv --device cuda\n"
                   "nsactl needle my-job --task trace\n"
                   "nsactl needle my-job -o json | jq '.cells[] | select(.found < .trials)'",
       .run = [flags](Session& session) { return Needle(session, *flags); }});
  options.Argument("CHECKPOINT|JOB", &flags->target, kModelArgument);
  options.Numbers("--lengths", "N,N,...", &flags->lengths, {.least = 32, .most = 1'048'576},
                  "Tokens of the context; may be more than the model was trained on (default: the "
                  "powers of two from 256 to train.seq_len)");
  options.Number("--depths", &flags->depths, {.least = 1, .most = 101},
                 "Places of what is hidden, from the beginning to the end (default: 5)");
  options.Number("--trials", &flags->trials, {.least = 1, .most = 1000},
                 "Documents for each length and place (default: 10)");
  AddNeedleText(&options, &flags->text);
  options.Text("--csv", "FILE", &flags->csv, "Also write length,depth,found,trials,task there");
  AddDevice(&options, &flags->device);
}

}  // namespace nsa::client
