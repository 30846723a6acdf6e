#include "common/preflight/fork.h"

#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/job/load.h"
#include "google/protobuf/util/message_differencer.h"

namespace nsa {
namespace {

// The parts of a job that decide its weights, with defaults filled in.
v1::JobSpec Trained(v1::JobSpec spec) {
  ApplyDefaults(&spec);
  v1::JobSpec trained;
  *trained.mutable_model() = spec.model();
  *trained.mutable_nsa() = spec.nsa();
  trained.mutable_nsa()->clear_audit_every();
  *trained.mutable_data() = spec.data();
  *trained.mutable_train() = spec.train();
  trained.mutable_train()->clear_out_dir();
  return trained;
}

// The parts that must be the same for a checkpoint to be usable.
v1::JobSpec Fixed(const v1::JobSpec& spec) {
  v1::JobSpec fixed = Trained(spec);
  const v1::Tokenizer tokenizer = fixed.data().tokenizer();
  fixed.clear_train();
  fixed.clear_data();
  fixed.mutable_data()->set_tokenizer(tokenizer);
  return fixed;
}

std::string Differences(const v1::JobSpec& from, const v1::JobSpec& to) {
  std::string text;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&text);
  differencer.Compare(from, to);
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    lines.emplace_back(absl::StripPrefix(line, "modified: "));
  }
  return absl::StrJoin(lines, "; ");
}

}  // namespace

std::optional<ForkProblem> CheckFork(const v1::CheckpointState& from, const v1::JobSpec& job) {
  if (const std::string differences = Differences(Fixed(from.spec()), Fixed(job));
      !differences.empty()) {
    return ForkProblem{
        absl::StrFormat("a checkpoint of another model (model, nsa and tokenizer must be the "
                        "same): %s",
                        differences),
        "undo the change, or take another checkpoint"};
  }
  if (from.step() >= job.train().steps()) {
    return ForkProblem{absl::StrFormat("a checkpoint of step %d (less than train.steps, %d)",
                                       from.step(), job.train().steps()),
                       "raise train.steps: the checkpoint's steps count as done"};
  }
  return std::nullopt;
}

std::string ForkDifferences(const v1::JobSpec& from, const v1::JobSpec& to) {
  return Differences(Trained(from), Trained(to));
}

}  // namespace nsa
