// Times how long a model takes for one more token, by the number of tokens before it. The model has
// the shape of a job and random parameters; no data files are needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/model/parameters.h"

namespace nsa::bench {

struct DecodeTiming {
  int32_t context = 2048;  // tokens of a sequence after the last step
  int steps = 400;
  int32_t slots = 1;  // sequences that are decoded together
};

struct DecodeTimes {
  double prompt_seconds = 0;  // of all tokens of one sequence before the first step
  double median_seconds = 0, p95_seconds = 0;  // of a step, which is a token of every sequence
  double keys = 0;    // that a step reads, by the rule; mean over steps, layers and groups
  int64_t bytes = 0;  // of the decoder
};

// Reads context − steps random tokens in every slot and times each of the `steps` that follow, all
// by wall clock; before that it does the same once with a few steps and does not count it.
// `parameters`, on the device of `exec`, has the layout of `spec`. InvalidArgument when the context
// does not exceed the steps or is outside the limits, or the slots are.
absl::StatusOr<DecodeTimes> TimeDecode(const Exec& exec, const v1::JobSpec& spec,
                                       const train::Arena& parameters, const DecodeTiming& timing);

struct DecodeOptions {
  std::string job;     // file
  std::string device;  // cpu or cuda; empty: cuda if this process may use a GPU
  std::vector<int32_t> contexts = {2048, 8192, 32768, 65536};
  std::vector<int32_t> slots = {1};
  int steps = 400;
  bool vs_dense = false;  // also the same model with dense attention
};

// Prints a table with a row for each context and number of slots.
absl::Status RunDecode(const DecodeOptions& options);

}  // namespace nsa::bench
