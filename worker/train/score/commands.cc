#include "worker/train/score/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numbers>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/conversations.h"
#include "common/run/atomic_file.h"
#include "common/run/output_file.h"
#include "nlohmann/json.hpp"
#include "worker/train/score/evaluate.h"
#include "worker/train/score/trained_model.h"

namespace nsa::train {

absl::Status ScoreCommand(const std::string& checkpoint, Backend backend, const TextFile& text,
                          const std::string& output) {
  NSA_ASSIGN_OR_RETURN(const auto trained, TrainedModel::Load(checkpoint, backend));
  NSA_ASSIGN_OR_RETURN(const ScoreSummary summary, ScoreFile(*trained, text, output));
  const auto tokens = static_cast<double>(std::max<int64_t>(1, summary.tokens));
  const auto bytes = static_cast<double>(std::max<int64_t>(1, summary.bytes));
  absl::PrintF("%d bytes, %d tokens: %.4f nats a token, %.4f bits a byte; step %d\n", summary.bytes,
               summary.tokens, summary.nats / tokens, summary.nats / std::numbers::ln2 / bytes,
               trained->state().step());
  return FlushStandardOutput();
}

absl::Status EvaluateCommand(const std::string& checkpoint, Backend backend, const TextFile& text,
                             const std::string& json) {
  NSA_ASSIGN_OR_RETURN(const auto trained, TrainedModel::Load(checkpoint, backend));
  const int64_t step = trained->state().step();
  nlohmann::ordered_json document;
  std::string shown;
  if (text.path.empty()) {
    NSA_ASSIGN_OR_RETURN(const std::vector<EvaluatedSet> sets, EvaluateSets(*trained));
    document = SetsDocument(sets, step);
    shown = absl::StrFormat("step %d, loss in nats a token\n%s", step, SetsText(sets));
  } else {
    NSA_ASSIGN_OR_RETURN(const Evaluation evaluation, EvaluateFile(*trained, text));
    document = EvaluationDocument(evaluation, step);
    shown = absl::StrFormat("step %d, %s", step, EvaluationText(evaluation));
  }
  if (!json.empty()) return WriteOutputFile(json, document.dump() + "\n");
  absl::PrintF("%s", shown);
  return FlushStandardOutput();
}

absl::Status SampleCommand(const std::string& checkpoint, Backend backend,
                           const std::string& prompt_file, SampleOptions options) {
  if (prompt_file == "-") {
    NSA_ASSIGN_OR_RETURN(options.prompt, ReadWholeFile(STDIN_FILENO, "standard input"));
  } else if (!prompt_file.empty()) {
    NSA_ASSIGN_OR_RETURN(options.prompt, ReadWholeFileOrPipe(prompt_file));
  }
  NSA_ASSIGN_OR_RETURN(const auto trained, TrainedModel::Load(checkpoint, backend));
  options.ends = AnswerEnds(trained->spec().data());
  // Print each token as soon as it is drawn, so that its text is not lost when the program is
  // ended.
  PrintableStream printable(isatty(STDOUT_FILENO) == 1);
  const auto show = [&printable](std::string_view bytes) {
    absl::PrintF("%s", printable.Add(bytes));
    return FlushStandardOutput();
  };
  NSA_RETURN_IF_ERROR(show(options.prompt));
  NSA_RETURN_IF_ERROR(Sample(*trained, options, show).status());
  absl::PrintF("%s\n", printable.Finish());
  return FlushStandardOutput();
}

}  // namespace nsa::train
