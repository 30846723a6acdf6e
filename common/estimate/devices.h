// The speeds of the GPUs that are known by name. PeakFlops() and SpeedSource() of estimate.h are
// defined here, too.
#pragma once

#include <string>

namespace nsa {

// The rate of large bf16 matrix products on a GPU of this name, in FLOP/s; that of an A100 if the
// name is not known. The table in devices.cc says where each is from.
double MatrixFlops(const std::string& device_name);

// The shares of that rate at which a step's operations are done where a pass has many tokens:
// those of matrix products, with the time of norms, activations and everything else that goes with
// the weights, and those of attention.
struct StepShares {
  double weights = 0;
  double attention = 0;
};
StepShares StepSharesOf(const std::string& device_name);

}  // namespace nsa
