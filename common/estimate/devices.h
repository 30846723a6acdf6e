// The speeds of the GPUs that are known by name. PeakFlops() and SpeedSource() of estimate.h are
// defined here, too.
#pragma once

#include <string>

namespace nsa {

// The rate of large bf16 matrix products on a GPU of this name, in FLOP/s; that of an A100 if the
// name is not known. The table in devices.cc says where each is from.
double MatrixFlops(const std::string& device_name);

}  // namespace nsa
