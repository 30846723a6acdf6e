// The texts that a job writes while it trains (`sample` in the job file).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "kernels/exec.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/data/tokenize/tokenizer.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

struct JobSamplesOptions {
  // All borrowed.
  const v1::JobSpec* spec = nullptr;  // with its defaults filled in
  // All weights, in the memory of exec's device: on a GPU the decoder reads the bf16 copy, which is
  // whole on every rank, also where the fp32 weights are divided over the ranks.
  const Arena* parameters = nullptr;
  const Clock* clock = nullptr;

  Exec exec;
  // Called after each token with the number of those that the text has; may be empty.
  std::function<void(int32_t tokens)> on_token;
};

class JobSamples {
 public:
  explicit JobSamples(JobSamplesOptions options);

  // Continues every prompt with the parameters as they are now, which it only reads. One record for
  // each, in their order. What goes wrong (a tokenizer that cannot be loaded, too little memory,
  // no time left) is the `error` of the records that it concerns. All texts of a step together may
  // take kSampleShareOfTimeout of restart.hang_timeout_seconds, because the other ranks wait.
  //
  // A text is a pure function of the parameters, the prompt, its place, the step and train.seed: it
  // has a decoder of its own, so that texts before it do not matter. The memory of the decoder is
  // taken and freed here (common/estimate/sampling.h).
  std::vector<v1::SampleRecord> Write(int64_t step);

 private:
  absl::Status OpenTokenizer();
  absl::StatusOr<std::string> WriteText(int index, absl::Duration end, v1::SampleRecord* record);
  absl::Status CheckTime(absl::Duration end) const;

  const JobSamplesOptions options_;
  const absl::Duration most_time_;            // of all texts of a step
  std::unique_ptr<TextTokenizer> tokenizer_;  // null until it is needed
};

}  // namespace nsa::train
