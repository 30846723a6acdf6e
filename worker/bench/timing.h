// Measures times on the GPU, and the ceilings that they are compared with.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "kernels/cuda/side.h"
#include "kernels/exec.h"
#include "worker/bench/floors.h"

namespace nsa::bench {

// One GPU with everything that the kernels need. Algorithms of the matrix library are chosen by
// timing them.
class Gpu {
 public:
  // Unavailable, with the reason, where there is no GPU.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(int64_t workspace_bytes);
  ~Gpu();

  Exec exec() const;
  const std::string& name() const { return name_; }
  const std::string& blas() const;

  // Median time of `repeats` calls in milliseconds, after two untimed calls. The L2 cache is
  // flushed before each call.
  absl::StatusOr<double> Time(int repeats, const std::function<absl::Status()>& call) const;

 private:
  Gpu() = default;
  std::string name_;
  void* stream_ = nullptr;
  void *workspace_ = nullptr, *blas_workspace_ = nullptr, *flush_ = nullptr;
  int64_t workspace_bytes_ = 0;
  std::unique_ptr<cuda::Side> side_;
  std::unique_ptr<cuda::Blas> blas_;
};

absl::StatusOr<Ceilings> MeasureCeilings(const Gpu& gpu);

}  // namespace nsa::bench
