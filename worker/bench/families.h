// What nsa-bench times: every kernel family as a call that both backends can run, with the
// arithmetic and the memory traffic that it needs at least.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "worker/bench/budget.h"
#include "worker/bench/data.h"

namespace nsa::bench {

// A family at one shape with its tensors on one device.
struct Call {
  std::function<absl::Status()> run;
  std::vector<std::pair<std::string, ConstTensor>> outputs;  // compared with the CPU reference
};

struct Family {
  std::string name;
  double flops = 0;  // of multiplications and additions at the timed shape
  double bytes = 0;  // each input read once, each output written once
  // Makes the call at `shape`: the timed shape, or a single sequence for the check.
  std::function<Call(const NsaShape& shape, Data* data)> make;
  double bound = 1.2e-2;                  // largest accepted ‖gpu − cpu‖ / ‖cpu‖
  std::optional<Executed> executed = {};  // where budget.h derives it
};

// Widths of the model around the attention.
struct ModelWidths {
  int64_t dim = 768;
  int64_t vocab = 256;
  int64_t parameters = 78'295'332;
};

// `code`: which of the kernels' codes runs, on which what they execute depends.
std::vector<Family> Families(const NsaShape& shape, const ModelWidths& widths, KernelCode code);

// Adds those of the optimizer (optimizer_families.cc).
void AddOptimizers(const ModelWidths& widths, std::vector<Family>* out);

}  // namespace nsa::bench
