// What a timed step begins with: weights and tokens. Both decide which blocks the tokens choose:
// with random ones, neighbouring tokens share few but the blocks that are always selected.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/tokens/token.h"
#include "worker/train/model/parameters.h"

namespace nsa::bench {

struct Start {
  train::Arena weights;              // in host memory; borrows the layout
  std::vector<train::Token> tokens;  // more than a sequence has; steps go over them again and again
  std::string origin;                // "random weights and tokens"
};

// The weights that training begins with, and random tokens for one step.
Start RandomStart(const v1::JobSpec& spec, const train::ParameterLayout* layout);

// The weights of a checkpoint and the tokens of a text file, by the tokenizer that the model was
// trained with. `checkpoint` is what TrainedModel::Load() takes, and its errors are returned.
// FailedPrecondition when `spec` has other parameters than the model, InvalidArgument when the text
// has no more tokens than a sequence.
absl::StatusOr<Start> TrainedStart(const v1::JobSpec& spec, const train::ParameterLayout* layout,
                                   const std::string& checkpoint, const std::string& text);

}  // namespace nsa::bench
