// What each source of data.mix had in a step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/comm/comm.h"
#include "worker/train/data/loader.h"

namespace nsa::train {

class MixShares {
 public:
  // `context` ranks share every sequence; each has the losses of its tokens.
  MixShares(const v1::DataSpec& data, int32_t context);

  // Remembers whose sequences a micro-batch of this rank has.
  void Add(const Batch& batch);

  // Sums rows and losses over the ranks and adds them to the record, a SourceShare for each source.
  // `losses`: of this rank's sequences, in the order of Add(). Then begins the next step.
  // Collective, but does nothing without data.mix. Errors of the communication.
  absl::Status Finish(std::span<const double> losses, const DataLoader& data, Comm* comm,
                      v1::StepRecord* record);

 private:
  const int32_t context_;
  std::vector<std::string> names_;
  std::vector<int32_t> parts_;  // of the step's sequences; -1 for one that a fallback generated
};

}  // namespace nsa::train
