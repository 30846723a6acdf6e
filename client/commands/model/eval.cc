// nsactl eval: how well a trained model predicts a text, or its validation sets. nsa-worker beside
// this program computes, on this machine; a coordinator is asked only for the out_dir of a job.
#include <memory>
#include <string>
#include <vector>

#include "client/cli.h"
#include "client/commands/model/device.h"
#include "client/commands/model/find_model.h"
#include "client/connect/local/input_file.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct EvalFlags {
  std::string device = kDefaultDevice;
  std::string target, data, text_field;
};

absl::StatusOr<ExitCode> Eval(Session& session, const EvalFlags& flags) {
  NSA_RETURN_IF_ERROR(CheckDevice(flags.device));
  if (!flags.data.empty()) {
    NSA_RETURN_IF_ERROR(CheckInputFile("--data", flags.data));
  } else if (!flags.text_field.empty()) {
    return absl::InvalidArgumentError(
        "--text-field: without --data (validation sets have the job's); name a file with --data");
  }
  NSA_ASSIGN_OR_RETURN(const std::string model, FindModel(session, flags.target));
  std::vector<std::string> arguments = {"eval", model};
  if (!flags.data.empty()) arguments.push_back(flags.data);
  if (!flags.text_field.empty()) {
    arguments.insert(arguments.end(), {"--text-field", flags.text_field});
  }
  return MeasureModelInForeground(session, flags.device, arguments);
}

}  // namespace

void AddEval(Cli* cli) {
  const auto flags = std::make_shared<EvalFlags>();
  Options options = cli->Add(
      {.name = "eval",
       .what = "Measure how well a trained model predicts a text or its validation sets",
       .group = "Models",
       .more = "Prints the loss in nats a token, the perplexity, bits a byte, and the loss by the "
               "number of tokens that the model saw\nbefore. Without --data: the loss by that "
               "number for "
               "the files of data.val_path and of each set of data.val,\nbeside each other. "
               "Computed on "
               "this machine, by nsa-worker or nsa-worker-cuda beside this program.",
       .examples = "nsactl eval my-job --data book.txt\n"
                   "nsactl eval my-job\n"
                   "nsactl eval ./out/checkpoints/step-00005000 --data val.jsonl.zst --device "
                   "cuda\n"
                   "nsactl eval my-job --data book.txt -o json | jq .bits_per_byte",
       .run = [flags](Session& session) { return Eval(session, *flags); }});
  options.Argument("CHECKPOINT|JOB", &flags->target, kModelArgument);
  options.Text("--data", "FILE", &flags->data,
               "Text, JSON lines (.jsonl, .ndjson) or Parquet (.parquet); also .gz and .zst "
               "(default: the validation sets of its job)");
  options.Text("--text-field", "FIELD", &flags->text_field,
               "Field of JSON lines or column of Parquet that has the text (default: the job's)");
  AddDevice(&options, &flags->device);
}

}  // namespace nsa::client
