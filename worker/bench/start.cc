#include "worker/bench/start.h"

#include <algorithm>
#include <memory>
#include <random>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/run/atomic_file.h"
#include "worker/train/score/trained_model.h"

namespace nsa::bench {
namespace {

absl::Status CheckSame(const train::ParameterLayout& job, const train::ParameterLayout& trained,
                       const std::string& checkpoint) {
  const auto same = [](const train::ParameterInfo& one, const train::ParameterInfo& other) {
    return one.name == other.name && one.shape == other.shape;
  };
  if (std::ranges::equal(job.tensors(), trained.tensors(), same)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "checkpoint: %s has %d parameters in %d tensors (the job's model: %d in %d, of the same "
      "names and shapes); give the job that it was trained with, or one with the same model",
      checkpoint, trained.count(), trained.tensors().size(), job.count(), job.tensors().size()));
}

}  // namespace

Start RandomStart(const v1::JobSpec& spec, const train::ParameterLayout* layout) {
  Start start{.weights = train::Arena(layout), .tokens = {}, .origin = "random weights and tokens"};
  train::Initialize(spec.train().seed(), &start.weights);
  std::mt19937 random(7);
  start.tokens.resize(static_cast<size_t>(TokensPerStep(spec)) + 1);
  for (train::Token& token : start.tokens) {
    token = static_cast<train::Token>(random() % VocabOf(spec));
  }
  return start;
}

absl::StatusOr<Start> TrainedStart(const v1::JobSpec& spec, const train::ParameterLayout* layout,
                                   const std::string& checkpoint, const std::string& text) {
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<train::TrainedModel> trained,
                       train::TrainedModel::Load(checkpoint));
  const train::Arena& weights = *trained->text_model().parameters;
  NSA_RETURN_IF_ERROR(CheckSame(*layout, weights.layout(), checkpoint));
  Start start{.weights = train::Arena(layout),
              .tokens = {},
              .origin = absl::StrFormat("weights of %s after step %d, tokens of %s", checkpoint,
                                        trained->state().step(), text)};
  std::ranges::copy(weights.flat(), start.weights.flat().begin());
  NSA_ASSIGN_OR_RETURN(const std::string content, ReadWholeFile(text));
  NSA_RETURN_IF_ERROR(trained->tokenizer().Encode(content, &start.tokens));
  if (std::ssize(start.tokens) <= spec.train().seq_len()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("text: %s has %d tokens (more than train.seq_len = %d); give a longer text",
                        text, start.tokens.size(), spec.train().seq_len()));
  }
  return start;
}

}  // namespace nsa::bench
