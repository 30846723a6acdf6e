// What this machine has: cores, memory, GPUs.
#pragma once

#include <memory>
#include <thread>

#include "common/base/mutex.h"
#include "nsa/v1/fleet.pb.h"
#include "worker/agent/options.h"

namespace nsa::agent {

// GPUs are asked for through NVML, which is opened at run time: a machine without it has none. GPUs
// that $CUDA_VISIBLE_DEVICES leaves out (a batch system's allocation) do not count. The driver is
// asked on a thread of its own, since it may hang with a broken GPU.
//
// Thread-safe.
class Inventory {
 public:
  explicit Inventory(const AgentOptions& options);
  ~Inventory();

  // Free memory is as of now; that of GPUs as old as it says, a second when the driver answers.
  v1::NodeInfo Read() const;

 private:
  void Watch();  // the thread

  mutable Mutex mutex_;
  CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration measured_ ABSL_GUARDED_BY(mutex_);  // monotonic: when the driver was asked
  v1::NodeInfo node_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// $CUDA_VISIBLE_DEVICES as CUDA reads it: positions, or (beginnings of) UUIDs, up to the first that
// names no GPU. `gpus` are all of the machine's, in NVML's order.
std::vector<v1::GpuInfo> VisibleGpus(const std::vector<v1::GpuInfo>& gpus, const char* visible);

}  // namespace nsa::agent
