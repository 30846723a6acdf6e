// What sets an optimizer apart, for whoever must know without computing with it. A new one needs a
// row here, its kernel, and its step in worker/train/model/optimizer.cc.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include "nsa/v1/job.pb.h"

namespace nsa {

struct OptimizerTraits {
  v1::Optimizer optimizer;
  std::string_view word;  // train.optimizer in job files
  // Updates the matrices of projections and MLPs, each as a whole, with train.muon_lr and
  // train.muon_betas; everything else is AdamW's.
  bool whole_matrices;
};

inline constexpr OptimizerTraits kOptimizers[] = {
    {v1::OPTIMIZER_ADAMW, "adamw", false},
    {v1::OPTIMIZER_MUON, "muon", true},
};

// Those of AdamW if the job does not say.
inline const OptimizerTraits& TraitsOf(const v1::TrainSpec& train) {
  const auto* const found =
      std::ranges::find(kOptimizers, train.optimizer(), &OptimizerTraits::optimizer);
  return found == std::end(kOptimizers) ? kOptimizers[0] : *found;
}

}  // namespace nsa
