#include "worker/train/command_line.h"

#include <iostream>

#include "kernels/cuda/device.h"

namespace nsa::train {

const char* ProgramName() { return cuda::BuiltWithCuda() ? "nsa-worker-cuda" : "nsa-worker"; }

int Refuse(const absl::Status& status) {
  std::cerr << ProgramName() << ": " << status.message() << "\n";
  return kUsage;
}

int Fail(const absl::Status& status) {
  std::cerr << ProgramName() << ": " << status.message() << "\n";
  return 1;
}

}  // namespace nsa::train
